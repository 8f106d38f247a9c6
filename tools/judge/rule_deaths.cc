// SPDX-License-Identifier: MIT
//
// Deaths that no wait has led to yet: everything agrees, and somebody is dead all the same.
//
// The first to die is the culprit. Those that follow with the signals and exit statuses of launchers and watchdogs are
// its consequences. A rank that had waited the full threshold when it ended is the victim of a hang, and a run that was
// stopped as a whole has no culprit.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain.h"
#include "tools/job/lookup.h"
#include "tools/judge/rules.h"
#include "tools/judge/wait_graph.h"

namespace lockstep {
namespace {

bool is_bad(const Life& life) { return life.end != End::none && life.end != End::clean; }

// Ended by itself, in a way that launchers and watchdogs do not use.
bool is_crash(const Life& life) {
  return life.end == End::signal && !is_request_to_stop(life.code) && life.code != 6 /* SIGABRT */;
}

// Ended as watchdogs and frameworks end a process that waits in vain, after a silence of the full threshold, with calls
// that may be pending for all one knows and nothing that tells where it was.
bool may_have_waited(const Evidence& evidence, size_t rank) {
  const Life& life = evidence.life(rank);
  const bool by_itself = life.end == End::status || (life.end == End::signal && life.code == 6 /* SIGABRT */);
  if (!by_itself || evidence.quiet(rank) < evidence.threshold_ns || where_it_sits(evidence, rank) != Sits::unknown)
    return false;
  for (const Comm& comm : evidence.table.comms)
    for (const Member& member : comm.members) {
      const trace::CommInfo& info = *member.info;
      if (member.rank == rank &&
          (info.coll_completed.value_or(0) < member.launched || info.p2p_completed.value_or(0) < info.p2p_called))
        return true;
    }
  return false;
}

// Was somebody else held up for the full threshold when this rank ended?
bool others_had_waited(const Evidence& evidence, size_t rank) {
  for (size_t other = 0; other < evidence.run.ranks.size(); other++) {
    const int64_t moved = std::max(evidence.worked[other].wall_ns, evidence.moved[other].wall_ns);
    if (other != rank && moved + evidence.threshold_ns <= evidence.life(rank).when.wall_ns &&
        where_it_sits(evidence, other) == Sits::waiting)
      return true;
  }
  return false;
}

// Asked to end, as launchers ask the others when one has ended badly?
bool was_asked_after_another(const Evidence& evidence, size_t rank) {
  const Life& life = evidence.life(rank);
  if (life.end != End::signal || !is_request_to_stop(life.code) || is_struck(life)) return false;
  for (size_t other = 0; other < evidence.run.ranks.size(); other++)
    if (other != rank && is_bad(evidence.life(other)) && evidence.life(other).when.wall_ns < life.when.wall_ns)
      return true;
  return false;
}

bool had_waited(const Evidence& evidence, const std::vector<Wait>& waits, size_t rank) {
  return is_stuck(evidence, rank) || may_have_waited(evidence, rank) ||
         std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
           return wait.age_ns >= evidence.threshold_ns &&
                  std::find(wait.waiting.begin(), wait.waiting.end(), rank) != wait.waiting.end();
         });
}

bool tells_of_calls(const Finding& finding) {
  return finding.seq && finding.expected && !finding.actual.empty() && finding.actual.begin()->second;
}

// That its call was another one says nothing of why it was killed.
bool is_named(const Evidence& evidence, const std::vector<Finding>& found, size_t rank) {
  return std::any_of(found.begin(), found.end(), [&](const Finding& finding) {
    return !(tells_of_calls(finding) && is_struck(evidence.life(rank))) &&
           std::find(finding.culprits.begin(), finding.culprits.end(), rank) != finding.culprits.end();
  });
}

// A rank that ends because the making of its communicator failed, for devices that are shared, is accounted for by
// that.
bool had_no_device(const Evidence& evidence, const std::vector<Finding>& found, size_t rank) {
  return std::any_of(found.begin(), found.end(), [&](const Finding& finding) {
    if (finding.kind != Kind::duplicate_device || is_struck(evidence.life(rank))) return false;
    const Member* member = member_of(evidence.table.comms[*finding.comm], rank);
    return member && member->info->state == trace::CommState::failed;
  });
}

// All ranks ended alike, by the same crash or with the same status: nobody stands out. Kills are another matter: there
// the first one is the out-of-memory killer's, and the rest the launcher's.
bool all_alike(const Evidence& evidence, const std::vector<size_t>& dead) {
  const Life& first = evidence.life(dead.front());
  const bool killed = first.end == End::vanished || (first.end == End::signal && is_request_to_stop(first.code));
  return !killed && dead.size() > 1 && dead.size() == evidence.run.ranks.size() &&
         std::all_of(dead.begin(), dead.end(), [&](size_t rank) {
           return evidence.life(rank).end == first.end && evidence.life(rank).code == first.code;
         });
}

// Did another host's rank end so soon after the first that the clocks of the two decide? `dead` is in order.
bool hosts_differ(const Evidence& evidence, const std::vector<size_t>& dead) {
  const int64_t first = evidence.life(dead.front()).when.wall_ns;
  const std::string host = evidence.file(dead.front()).header.host;
  return std::any_of(dead.begin(), dead.end(), [&](size_t rank) {
    return evidence.life(rank).when.wall_ns - first < kClocksOfHosts && host != evidence.file(rank).header.host;
  });
}

// An error that is known already is the first cause of deaths that came after it. But calls that differ make nobody
// kill a rank before somebody has waited for long.
bool may_bring_about(const Finding& finding, const Life& life) {
  return finding.severity == Severity::error && finding.hangs && finding.since.wall_ns <= life.when.wall_ns &&
         !(tells_of_calls(finding) && is_struck(life));
}

void name_last_call(const Evidence& evidence, Finding& finding) {
  if (finding.culprits.empty()) return;
  for (size_t index = 0; index < evidence.table.comms.size(); index++)
    for (const Member& member : evidence.table.comms[index].members) {
      if (member.rank != finding.culprits.front() || member.launched == 0 || finding.comm) continue;
      finding.comm = index;
      finding.agreed_seq = member.launched - 1;
      if (const trace::Call* call = member.call_at(member.launched - 1)) finding.agreed_op = op_name(*call);
    }
}

}  // namespace

std::vector<Finding> find_deaths(const Evidence& evidence, const std::vector<Wait>& waits,
                                 const std::vector<Finding>& found) {
  if (evidence.outside) return {};
  std::vector<size_t> dead;
  for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++)
    if (is_bad(evidence.life(rank)) && !had_waited(evidence, waits, rank) && !had_no_device(evidence, found, rank))
      dead.push_back(rank);
  if (dead.empty()) return {};
  const auto ended = [&](size_t rank) { return evidence.life(rank).when.wall_ns; };
  std::stable_sort(dead.begin(), dead.end(), [&](size_t a, size_t b) { return ended(a) < ended(b); });
  // Those who were asked to stop because of one that was struck may be noted a moment before it.
  const auto struck = std::find_if(dead.begin(), dead.end(), [&](size_t rank) {
    return is_struck(evidence.life(rank)) && ended(rank) - ended(dead.front()) < kHeadStart;
  });
  if (struck != dead.end()) std::rotate(dead.begin(), struck, struck + 1);
  const bool known_before =
      others_had_waited(evidence, dead.front()) || std::any_of(found.begin(), found.end(), [&](const Finding& finding) {
        return may_bring_about(finding, evidence.life(dead.front()));
      });

  Finding finding;
  finding.kind = Kind::died;
  finding.since = evidence.life(dead.front()).when;
  const bool alike = all_alike(evidence, dead);
  for (const size_t rank : dead) {
    const bool first = rank == dead.front() && !known_before && !was_asked_after_another(evidence, rank);
    if (!alike && !is_named(evidence, found, rank) && (first || is_crash(evidence.life(rank)))) {
      finding.culprits.push_back(rank);
      finding.actual[rank] = std::nullopt;
    } else {
      finding.victims.push_back(rank);
    }
  }
  if (finding.culprits.empty() && !alike) return {};
  if (alike) {
    finding.confidence = Confidence::possible;
    finding.doubts.push_back("the ranks ended in the same way and at the same time, so nobody stands out");
  } else if (!evidence.life(finding.culprits.front()).time_known) {
    finding.confidence = Confidence::likely;
    finding.doubts.push_back("the time of its end is known only from its last heartbeat");
  }
  if (!finding.culprits.empty() && hosts_differ(evidence, dead)) {
    finding.confidence = std::max(finding.confidence, Confidence::likely);
    finding.doubts.push_back("that it was the first to end is told by the clocks of two hosts");
  }
  finding.detail = "it " + end_in_words(evidence.life(dead.front()));
  name_last_call(evidence, finding);
  return {finding};
}

void fold_followers(const Evidence& evidence, std::vector<Finding>& findings) {
  const auto cause_of = [&](const Finding& finding) {
    const std::vector<size_t> before =
        finding.kind == Kind::died ? deaths_before(evidence, finding.culprits.front()) : std::vector<size_t>{};
    return std::find_if(findings.begin(), findings.end(), [&](const Finding& other) {
      return &other != &finding && other.kind == Kind::died &&
             std::find_first_of(before.begin(), before.end(), other.culprits.begin(), other.culprits.end()) !=
                 before.end();
    });
  };
  for (size_t i = 0; i < findings.size();) {
    const auto cause = findings[i].culprits.empty() ? findings.end() : cause_of(findings[i]);
    if (cause == findings.end()) {
      i++;
      continue;
    }
    const Finding& follows = findings[i];
    cause->detail += fmt::format("; {} followed: {}", ranks_text(evidence.run, follows.culprits), follows.detail);
    add_unique(cause->victims, follows.culprits, cause->culprits);
    add_unique(cause->victims, follows.victims, cause->culprits);
    findings.erase(findings.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace lockstep
