// SPDX-License-Identifier: MIT
//
// Rows whose calls differ. The expected call is the one most members made, if no other was made as often; the others
// are the culprits. Members whose call is not on record have no vote. Where that is because they have not called yet,
// and their votes could turn the majority, the finding is only likely; where they may have called (no trace, ring
// wrapped), nobody is named.
//
// A call with count 0 enqueues nothing and takes no number, so the row it should have been in holds the odd rank's
// *next* call and may look well; it shows as a row one short at the end. Hence it is looked for by itself, and reported
// only where the communicator's rows are later seen to disagree.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "interpose/abi/functions.h"
#include "tools/job/lookup.h"
#include "tools/judge/flow.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

using trace::Call;

struct Vote {
  Signature signature;
  std::vector<const Member*> members;
};

std::vector<Vote> votes_in_row(const Comm& comm, uint64_t seq) {
  std::vector<Vote> votes;
  for (const Member& member : comm.members) {
    const Call* call = member.call_at(seq);
    if (!call) continue;
    const Signature signature = signature_of(*call);
    const auto same =
        std::find_if(votes.begin(), votes.end(), [&](const Vote& vote) { return vote.signature == signature; });
    if (same == votes.end()) {
      votes.push_back({signature, {&member}});
    } else {
      same->members.push_back(&member);
    }
  }
  std::stable_sort(votes.begin(), votes.end(),
                   [](const Vote& a, const Vote& b) { return a.members.size() > b.members.size(); });
  return votes;
}

// A cheap look before the vote: most rows agree, and jobs have millions.
bool row_differs(const Comm& comm, uint64_t seq) {
  const Call* first = nullptr;
  for (const Member& member : comm.members) {
    const Call* call = member.call_at(seq);
    if (!call) continue;
    if (!first) {
      first = call;
      continue;
    }
    const bool alike = call->fn == first->fn && call->count == first->count && call->dtype == first->dtype &&
                       call->redop == first->redop && call->peer == first->peer;
    if (!alike && !(signature_of(*call) == signature_of(*first))) return true;
  }
  return false;
}

Kind kind_of_difference(const Signature& a, const Signature& b) {
  if (a.op != b.op) return Kind::op_mismatch;
  if (a.count != b.count) return Kind::count_mismatch;
  if (a.dtype != b.dtype) return Kind::dtype_mismatch;
  if (a.redop != b.redop) return Kind::redop_mismatch;
  return Kind::root_mismatch;
}

// Numbers of the rows that any member has a call for, ascending. Not a range: a damaged file may hold any number.
std::vector<uint64_t> rows_on_record(const Comm& comm) {
  std::vector<uint64_t> rows;
  for (const Member& member : comm.members)
    for (const Call* call : member.collectives) rows.push_back(call->seq);
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

void set_agreed(const Comm& comm, uint64_t seq, Finding& finding) {
  if (seq == 0) return;
  for (const Member& member : comm.members) {
    if (member.launched < seq) return;
    if (const Call* call = member.call_at(seq - 1); call && finding.agreed_op.empty())
      finding.agreed_op = op_name(*call);
  }
  finding.agreed_seq = seq - 1;
}

// Does the odd member's list of calls look like the majority's with one left out, or one put in?
std::string shift_in_words(const Member& odd, const Member& good, uint64_t seq) {
  const Call* mine = odd.call_at(seq);
  const Call* theirs = good.call_at(seq);
  const Call* mine_next = odd.call_at(seq + 1);
  const Call* theirs_next = good.call_at(seq + 1);
  if (mine && theirs_next && signature_of(*mine) == signature_of(*theirs_next))
    return fmt::format("it looks as if it had skipped {} #{}, since what it called is the others' next call",
                       op_name(*theirs), seq);
  if (theirs && mine_next && signature_of(*mine_next) == signature_of(*theirs))
    return fmt::format("it looks as if it had put in an extra {}, since its next call is what the others made",
                       op_name(*mine));
  return "";
}

void doubt(Finding& finding, Confidence at_most, std::string why) {
  finding.confidence = std::max(finding.confidence, at_most);
  finding.doubts.push_back(std::move(why));
}

// Members that may have made a call in this row of which there is no record.
size_t lost_votes(const Comm& comm, uint64_t seq) {
  const size_t all = comm.nranks > 0 ? static_cast<size_t>(comm.nranks) : comm.members.size();
  const auto lost = std::count_if(comm.members.begin(), comm.members.end(),
                                  [&](const Member& member) { return member.launched > seq && !member.call_at(seq); });
  return all - std::min(all, comm.members.size()) + static_cast<size_t>(lost);
}

void name_the_odd(const Evidence& evidence, const Comm& comm, const std::vector<Vote>& votes, Finding& finding) {
  const size_t most = votes[0].members.size(), next = votes[1].members.size();
  const size_t lost = lost_votes(comm, *finding.seq);
  const bool tie = next + lost >= most;
  size_t odd = 0;
  for (size_t i = 0; i < votes.size(); i++) {
    for (const Member* member : votes[i].members) {
      if (i > 0 || tie) finding.actual[member->rank] = votes[i].signature;
      if (i > 0 && !tie) finding.culprits.push_back(member->rank);
      if (i == 0 && !tie) finding.victims.push_back(member->rank);
      odd += i > 0;
    }
  }
  if (tie) {
    for (const Vote& vote : votes)
      for (const Member* member : vote.members) finding.victims.push_back(member->rank);
    doubt(finding, Confidence::possible,
          lost == 0 ? "as many ranks made the one call as the other, so nobody can be blamed"
                    : fmt::format("{} of the ranks may have made either call, so nobody can be blamed", lost));
    return;
  }
  const size_t members = comm.nranks > 0 ? static_cast<size_t>(comm.nranks) : comm.members.size();
  const size_t silent = members - std::min(members, most + odd);
  if (next + silent >= most)
    doubt(finding, Confidence::likely, fmt::format("{} of {} ranks have no call on record there", silent, members));
  if (most <= odd) doubt(finding, Confidence::likely, "the largest group of equal calls is not a majority");
  finding.detail = finding.culprits.size() == 1 && finding.kind == Kind::op_mismatch
                       ? shift_in_words(*votes[1].members[0], *votes[0].members[0], *finding.seq)
                       : std::string();
}

std::optional<Finding> first_differing_row(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  for (const uint64_t seq : rows_on_record(comm)) {
    if (!row_differs(comm, seq)) continue;
    const std::vector<Vote> votes = votes_in_row(comm, seq);
    Finding finding;
    finding.kind = kind_of_difference(votes[0].signature, votes[1].signature);
    finding.comm = index;
    finding.seq = seq;
    finding.op = votes[0].signature.op;
    finding.expected = votes[0].signature;
    finding.since = votes.back().members.front()->call_at(seq)->called;
    set_agreed(comm, seq, finding);
    name_the_odd(evidence, comm, votes, finding);
    return finding;
  }
  return std::nullopt;
}

// --- count 0
// ---------------------------------------------------------------------------------------------------------------

// Did the members ever come apart at or after this row, by what they called or by how many?
bool comes_apart(const Comm& comm, uint64_t seq) {
  uint64_t fewest = UINT64_MAX, most = 0;
  for (const Member& member : comm.members) {
    fewest = std::min(fewest, member.called);
    most = std::max(most, member.called);
  }
  if (fewest != most) return most > seq;
  for (const uint64_t at : rows_on_record(comm))
    if (at >= seq && row_differs(comm, at)) return true;
  return false;
}

// Is everything the member did between the row before this one and this row on record?
bool is_covered(const Member& member, uint64_t seq) {
  if (member.file->overwritten == 0) return true;
  const Call* before = seq > 0 ? member.call_at(seq - 1) : nullptr;
  return before && !member.file->calls.empty() && before->event >= member.file->calls.front().event;
}

// Members whose calls with count 0 stand where all the others, who made none there, call the same operation on n > 0.
std::optional<Finding> zero_count_row(const Evidence& evidence, size_t index) {
  const Comm& comm = evidence.table.comms[index];
  std::optional<uint64_t> row;
  for (const Member& member : comm.members)
    for (size_t i = 0; i < member.zero_calls.size(); i++) {
      const uint64_t seq = member.zero_next_seq[i];
      if (row && seq >= *row) continue;
      const auto calls_it_for_real = [&](const Member& other) {
        const bool zero_too = std::count(other.zero_next_seq.begin(), other.zero_next_seq.end(), seq) != 0;
        const Call* call = other.call_at(seq);
        return !zero_too && call && is_covered(other, seq) && op_name(*call) == op_name(*member.zero_calls[i]);
      };
      const auto real = std::count_if(comm.members.begin(), comm.members.end(), calls_it_for_real);
      if (real > 0 && comes_apart(comm, seq)) row = seq;
    }
  if (!row) return std::nullopt;

  std::vector<Vote> votes;
  Vote zero;
  for (const Member& member : comm.members) {
    const auto at = std::find(member.zero_next_seq.begin(), member.zero_next_seq.end(), *row);
    if (at == member.zero_next_seq.end()) continue;
    zero.members.push_back(&member);
    zero.signature = signature_of(*member.zero_calls[static_cast<size_t>(at - member.zero_next_seq.begin())]);
  }
  for (Vote& vote : votes_in_row(comm, *row)) {
    const auto is_zero = [&](const Member* member) {
      return std::find(zero.members.begin(), zero.members.end(), member) != zero.members.end();
    };
    vote.members.erase(std::remove_if(vote.members.begin(), vote.members.end(), is_zero), vote.members.end());
    if (!vote.members.empty() && vote.signature.op == zero.signature.op) votes.push_back(vote);
  }
  if (votes.empty()) return std::nullopt;
  // Who may have passed 0 as well and lost the record of it has no vote.
  for (const Member& member : comm.members)
    if (!is_covered(member, *row)) return std::nullopt;
  const Vote& real = votes.front();
  // The members that pass n must have launched more than the odd one: by as many as it passed 0.
  const auto lags = [&](const Member* odd) { return odd->called < real.members.front()->called; };
  if (std::none_of(zero.members.begin(), zero.members.end(), lags) && !row_differs(comm, *row)) return std::nullopt;

  Finding finding;
  finding.kind = Kind::count_mismatch;
  finding.comm = index;
  finding.seq = *row;
  finding.op = real.signature.op;
  finding.expected = real.signature;
  finding.since = zero.members.front()->zero_calls.front()->called;
  set_agreed(comm, *row, finding);
  std::vector<Vote> both{real, zero};
  if (zero.members.size() > real.members.size()) std::swap(both[0], both[1]);
  finding.expected = both[0].signature;
  name_the_odd(evidence, comm, both, finding);
  finding.detail = "a collective of 0 elements enqueues nothing, so the other side waits for it for ever";
  return finding;
}

// --- messages
// --------------------------------------------------------------------------------------------------------------

struct Ends {
  const Member* from = nullptr;
  const Member* to = nullptr;
  const Call* sent = nullptr;
  const Call* received = nullptr;
};

uint64_t bytes_of(const Call& call) { return call.count * abi::dtype_size(call.dtype); }

// The first message whose two ends pass different sizes. Neither of the two can be said to be wrong.
std::optional<Finding> unequal_message(const Evidence&, const Comm& comm, size_t index) {
  std::map<std::pair<EdgeKey, uint64_t>, Ends> messages;
  for (const Member& member : comm.members) {
    const std::vector<uint64_t> numbers = edge_numbers(member);
    for (size_t i = 0; i < member.p2p.size(); i++) {
      const EdgeKey edge = edge_of(index, member, *member.p2p[i]);
      if (edge.from == edge.to) continue;
      Ends& ends = messages[{edge, numbers[i]}];
      const bool sends = edge.from == member.comm_rank;
      (sends ? ends.from : ends.to) = &member;
      (sends ? ends.sent : ends.received) = member.p2p[i];
    }
  }
  const Ends* first = nullptr;
  uint64_t number = 0;
  for (const auto& [key, ends] : messages) {
    if (!ends.sent || !ends.received || bytes_of(*ends.sent) == bytes_of(*ends.received)) continue;
    if (first && first->sent->called.wall_ns <= ends.sent->called.wall_ns) continue;
    first = &ends;
    number = key.second;
  }
  if (!first) return std::nullopt;
  Finding finding;
  finding.kind = Kind::p2p_size_mismatch;
  finding.comm = index;
  finding.op = "Send";
  finding.message = Message{first->from->rank, first->to->rank, true, number};
  finding.expected = signature_of(*first->sent);
  finding.actual[first->to->rank] = signature_of(*first->received);
  finding.victims = {first->from->rank, first->to->rank};
  finding.may_hang = bytes_of(*first->received) > bytes_of(*first->sent);
  finding.since = std::max(first->sent->called.wall_ns, first->received->called.wall_ns) == first->sent->called.wall_ns
                      ? first->sent->called
                      : first->received->called;
  finding.detail =
      finding.may_hang ? "the receiver waits for more than is sent" : "the receiver gets a part of what is sent";
  doubt(finding, Confidence::likely, "which of the two ends is wrong cannot be told");
  return finding;
}

// Has a member launched the row, waited for long, and never started it?
bool is_ahead_of_device(const Evidence& evidence, const Comm& comm, uint64_t seq) {
  return std::any_of(comm.members.begin(), comm.members.end(), [&](const Member& member) {
    return is_unstarted(member, seq) && evidence.life(member.rank).end != End::clean &&
           evidence.quiet(member.rank) >= evidence.threshold_ns;
  });
}

// Nobody leaves these before all have come.
bool needs_all(const Call& call) {
  using abi::Fn;
  const auto fn = static_cast<Fn>(call.fn);
  return (fn == Fn::AllReduce || fn == Fn::AllGather || fn == Fn::ReduceScatter || fn == Fn::AlltoAll) &&
         call.count > 0;
}

// Has a member not launched an earlier row in which all others wait for it? Then nobody has come as far as this one.
bool is_behind_absent(const Comm& comm, uint64_t seq) {
  uint64_t least = seq;
  for (const Member& member : comm.members) least = std::min(least, member.launched);
  return least < seq && std::any_of(comm.members.begin(), comm.members.end(), [&](const Member& member) {
           const Call* call = member.launched > least ? member.call_at(least) : nullptr;
           return call && needs_all(*call);
         });
}

bool passes_zero(const Finding& mismatch) {
  const auto is_zero = [](const auto& actual) { return actual.second && actual.second->count == 0; };
  return (mismatch.expected && mismatch.expected->count == 0) ||
         std::any_of(mismatch.actual.begin(), mismatch.actual.end(), is_zero);
}

}  // namespace

void note_turns(const Evidence& evidence, std::vector<Finding>& mismatches) {
  if (mismatches.empty()) return;
  const Flow flow(evidence);
  for (Finding& mismatch : mismatches) {
    if (passes_zero(mismatch)) continue;  // it is never launched
    const Comm& comm = evidence.table.comms[*mismatch.comm];
    mismatch.begun = mismatch.seq
                         ? !is_ahead_of_device(evidence, comm, *mismatch.seq) && !is_behind_absent(comm, *mismatch.seq)
                         : !flow.is_behind_row(edge_of(evidence.table, mismatch), mismatch.message->number);
  }
}

bool holds_nobody_up(const Finding& finding) {
  if (finding.kind == Kind::p2p_size_mismatch) return !finding.hangs && (!finding.may_hang || !finding.begun);
  return !finding.begun;
}

std::vector<Finding> find_mismatches(const Evidence& evidence) {
  std::vector<Finding> findings;
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    std::optional<Finding> differing = first_differing_row(evidence, index);
    std::optional<Finding> zero = zero_count_row(evidence, index);
    if (zero && (!differing || *zero->seq <= *differing->seq)) differing = std::move(zero);
    if (differing) findings.push_back(std::move(*differing));
    if (std::optional<Finding> unequal = unequal_message(evidence, evidence.table.comms[index], index))
      findings.push_back(std::move(*unequal));
  }
  return findings;
}

}  // namespace lockstep
