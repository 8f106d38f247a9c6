// SPDX-License-Identifier: MIT
#include "tools/explain/explain.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "interpose/abi/functions.h"
#include "tools/explain/explain_parts.h"
#include "tools/job/lookup.h"
#include "tools/job/runs.h"

namespace lockstep {
namespace {

using trace::Call;

std::string place_of(const Run& run, size_t rank) {
  const trace::FileHeader& header = run.process_of(rank).file.header;
  return fmt::format("host {}, pid {}", header.host, header.pid);
}

std::string who(const Run& run, const std::vector<size_t>& ranks) {
  if (ranks.size() == 1 && run.ranks[ranks[0]].number >= 0)
    return fmt::format("{} ({})", rank_name(run, ranks[0]), place_of(run, ranks[0]));
  return ranks_text(run, ranks);
}

std::string call_text(const Evidence& evidence, const Finding& finding) {
  const std::string op = finding.op.empty() ? "collective" : finding.op;
  if (!finding.comm) return op;
  const std::string& name = evidence.table.comms[*finding.comm].name;
  return finding.seq ? fmt::format("{} #{} on {}", op, *finding.seq, name) : fmt::format("{} on {}", op, name);
}

std::string where_text(const Evidence& evidence, const Finding& finding) {
  if (finding.culprits.size() != 1) return "";
  const size_t rank = finding.culprits.front();
  const auto stack = finding.stacks.find(rank);
  if (stack == finding.stacks.end() || stack->second.origin != "now") return "";
  const Frame* frame = users_frame(stack->second.frames);
  if (!frame) frame = &stack->second.frames.front();
  const trace::TraceFile& file = evidence.file(rank);
  const int64_t quiet = evidence.life(rank).seen.mono_ns - file.last_call.mono_ns;
  std::string text = fmt::format("; it sits in {}", frame_text(*frame));
  if (file.last_call.mono_ns) text += fmt::format(", {} after its last NCCL call", duration_text(quiet));
  return text;
}

std::string marks_text(const Finding& finding) {
  std::string text;
  if (finding.step) text += fmt::format("; last step {}", *finding.step);
  if (!finding.sample.empty()) text += fmt::format("{} sample {}", finding.step ? "," : ";", finding.sample);
  return text;
}

std::string waiting_text(const Evidence& evidence, const Finding& finding) {
  if (finding.victims.empty() || finding.pending_ns <= 0) return "";
  return fmt::format(
      "; {} waiting there for {}",
      ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " has been" : " have been"),
      duration_text(finding.pending_ns));
}

const char* field_of(Kind kind) {
  switch (kind) {
    case Kind::count_mismatch:
      return "another number of elements";
    case Kind::dtype_mismatch:
      return "another data type";
    case Kind::redop_mismatch:
      return "another reduction";
    case Kind::root_mismatch:
      return "another root";
    default:
      return "another operation";
  }
}

std::string odd_calls(const Evidence& evidence, const Finding& finding) {
  // Group the odd ranks by what they called; a tie lists both sides.
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;
  for (const auto& [rank, signature] : finding.actual) {
    const std::string text = signature ? signature_text(*signature) : "nothing";
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == text; });
    if (same == groups.end()) {
      groups.push_back({text, {rank}});
    } else {
      same->second.push_back(rank);
    }
  }
  std::string text;
  for (const auto& [call, ranks] : groups)
    text += fmt::format("{}{} called {}", text.empty() ? "" : ", ", ranks_text(evidence.run, ranks), call);
  return text;
}

std::string mismatch_summary(const Evidence& evidence, const Finding& finding) {
  const std::string& comm = evidence.table.comms[*finding.comm].name;
  std::string text;
  if (finding.culprits.empty()) {
    text = fmt::format("the calls #{} on {} differ: {}", *finding.seq, comm, odd_calls(evidence, finding));
  } else {
    text = fmt::format("{} made collective #{} on {} with {}: {} where {} {}", who(evidence.run, finding.culprits),
                       *finding.seq, comm, field_of(finding.kind),
                       finding.actual.empty() || !finding.actual.begin()->second
                           ? "nothing"
                           : signature_text(*finding.actual.at(finding.culprits.front())),
                       ranks_text(evidence.run, finding.victims),
                       finding.expected ? "called " + signature_text(*finding.expected) : "agree");
  }
  if (finding.step) text += fmt::format(", in step {}", *finding.step);
  if (finding.hangs)
    text +=
        fmt::format("; the job hangs since{}, for {}", finding.stuck_seq ? fmt::format(" #{}", *finding.stuck_seq) : "",
                    duration_text(finding.pending_ns));
  if (!finding.detail.empty()) text += "; " + finding.detail;
  return text;
}

std::string sizes_summary(const Evidence& evidence, const Finding& finding) {
  const Message& message = *finding.message;
  std::string text =
      fmt::format("message {} (from 0) from {} to {} on {}: {} where the other end takes {}; {}", message.number,
                  rank_name(evidence.run, message.rank), rank_name(evidence.run, *message.peer),
                  evidence.table.comms[*finding.comm].name, signature_text(*finding.expected),
                  signature_text(*finding.actual.at(*message.peer)), finding.detail);
  if (finding.hangs) text += fmt::format("; the job hangs for {}", duration_text(finding.pending_ns));
  return text;
}

std::string absent_summary(const Evidence& evidence, const Finding& finding) {
  const std::string what = call_text(evidence, finding);
  const std::string subject = who(evidence.run, finding.culprits);
  std::string text;
  switch (finding.kind) {
    case Kind::left_early:
      text = fmt::format("{} left before {}: {}", subject, what, finding.detail);
      break;
    case Kind::died:
      text = fmt::format("{} died before {}: {}", subject, what, finding.detail);
      break;
    case Kind::init_incomplete:
      text = fmt::format("{} never joined {}", subject, what);
      break;
    case Kind::p2p_unmatched:
      text = fmt::format("{} never answered a {}", subject, what);
      break;
    default:
      text = fmt::format("{} never made {}", subject, what);
      break;
  }
  const bool told = finding.kind == Kind::left_early || finding.kind == Kind::died;
  if (finding.kind == Kind::missing_call || finding.kind == Kind::init_incomplete ||
      finding.kind == Kind::p2p_unmatched)
    text += where_text(evidence, finding);
  text += marks_text(finding) + waiting_text(evidence, finding);
  if (!told && !finding.detail.empty()) text += "; " + finding.detail;
  return text;
}

std::string init_nobody_summary(const Evidence& evidence, const Finding& finding) {
  const Comm& comm = evidence.table.comms[*finding.comm];
  const std::string missing = finding.traceless.empty()
                                  ? std::string("others")
                                  : "rank " + number_ranges(finding.traceless) + ", without a trace,";
  return fmt::format("{} never joined {} (of {} ranks){}", missing, call_text(evidence, finding), comm.nranks,
                     waiting_text(evidence, finding));
}

std::string death_summary(const Evidence& evidence, const Finding& finding) {
  if (finding.culprits.empty())
    return fmt::format("all {} ranks ended alike: each {}", evidence.run.ranks.size(), finding.detail.substr(3));
  std::string text = fmt::format("{} died: {}", who(evidence.run, finding.culprits), finding.detail);
  if (finding.agreed_seq && finding.comm)
    text +=
        fmt::format("; its last collective was {} #{} on {}", finding.agreed_op.empty() ? "call" : finding.agreed_op,
                    *finding.agreed_seq, evidence.table.comms[*finding.comm].name);
  return text + marks_text(finding);
}

std::string missing_trace_summary(const Evidence& evidence, const Finding& finding) {
  std::string text = fmt::format("no trace of rank {}", number_ranges(evidence.run.missing));
  if (!finding.traceless.empty())
    text += fmt::format(", and all others sit in {} for {}: they may be waiting for it", call_text(evidence, finding),
                        duration_text(finding.pending_ns));
  return text;
}

std::string cycle_text(const Evidence& evidence, const Finding& finding) {
  std::string text;
  for (const size_t rank : finding.cycle) text += rank_name(evidence.run, rank) + " waits for ";
  if (finding.cycle.empty()) return ranks_text(evidence.run, finding.victims);
  return text + rank_name(evidence.run, finding.cycle.front());
}

std::string summary_of(const Evidence& evidence, const Finding& finding) {
  if (calls_differ(finding)) return mismatch_summary(evidence, finding);
  switch (finding.kind) {
    case Kind::p2p_size_mismatch:
      return sizes_summary(evidence, finding);
    case Kind::not_started:
      return fmt::format("{} {} made {}, and it has not started on the device; on {} it has{}",
                         who(evidence.run, finding.culprits), finding.culprits.size() == 1 ? "has" : "have",
                         call_text(evidence, finding), ranks_text(evidence.run, finding.victims),
                         waiting_text(evidence, finding));
    case Kind::host_blocked:
      if (std::all_of(finding.culprits.begin(), finding.culprits.end(),
                      [&](size_t rank) { return evidence.stopped(rank) != Stopped::no; }))
        return fmt::format("{} made {} and cannot go on{}", who(evidence.run, finding.culprits),
                           call_text(evidence, finding), waiting_text(evidence, finding));
      return fmt::format("{} never made {}: it waits for the device, and not for anything of NCCL's{}",
                         who(evidence.run, finding.culprits), call_text(evidence, finding),
                         waiting_text(evidence, finding));
    case Kind::wrong_communicator:
      return fmt::format(
          "{} made {}, which the others never make; the same call was made before on a communicator of just "
          "those ranks{}",
          who(evidence.run, finding.culprits), call_text(evidence, finding), waiting_text(evidence, finding));
    case Kind::group_mismatch:
      return fmt::format("a group of messages on {} does not add up: {}{}", evidence.table.comms[*finding.comm].name,
                         finding.detail, waiting_text(evidence, finding));
    case Kind::teardown_order:
      return fmt::format("{} {} inside the teardown of communicators in different orders: some in {}, and {}; for {}",
                         ranks_text(evidence.run, finding.victims), finding.victims.size() == 1 ? "is" : "are",
                         call_text(evidence, finding), finding.detail, duration_text(finding.pending_ns));
    case Kind::comm_error:
      return fmt::format(
          "{}: {}, the first error on record",
          finding.culprits.empty() ? ranks_text(evidence.run, finding.victims) : who(evidence.run, finding.culprits),
          finding.detail);
    case Kind::duplicate_device:
      return fmt::format("{} could not be created: {}", evidence.table.comms[*finding.comm].name, finding.detail);
    case Kind::environment_differs:
      return "the ranks were started with different settings: " + finding.detail;
    case Kind::group_size:
      return "several worlds, where one may have been meant: " + finding.detail;
    case Kind::concurrent_use:
      return fmt::format("{} used {} from two threads at once: {}", ranks_text(evidence.run, finding.victims),
                         evidence.table.comms[*finding.comm].name, finding.detail);
    case Kind::duplicate_data:
      return finding.detail;
    case Kind::result_divergence:
      if (finding.culprits.empty())
        return fmt::format("the results of {} differ between {}", call_text(evidence, finding),
                           ranks_text(evidence.run, finding.victims));
      return fmt::format("{} got another result from {} than {}", who(evidence.run, finding.culprits),
                         call_text(evidence, finding), ranks_text(evidence.run, finding.victims));
    case Kind::missing_trace:
      return missing_trace_summary(evidence, finding);
    case Kind::stalled_together:
      if (!finding.detail.empty())
        return fmt::format("{} in {} for {}, and {}",
                           ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " sits" : " sit"),
                           call_text(evidence, finding), duration_text(finding.pending_ns), finding.detail);
      return fmt::format("all ranks made the same calls and {} in {} for {}: nobody is missing, so nobody is named",
                         ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " sits" : " sit"),
                         call_text(evidence, finding), duration_text(finding.pending_ns));
    case Kind::idle:
      return fmt::format("all ranks are idle: no NCCL call for {} and nothing pending",
                         duration_text(finding.pending_ns));
    case Kind::straggler: {
      std::vector<size_t> late;
      for (const auto& [rank, nothing] : finding.actual) late.push_back(rank);
      return fmt::format(
          "{} {} not made {} yet; {} waiting for {} since {}", ranks_text(evidence.run, late),
          late.size() == 1 ? "has" : "have", call_text(evidence, finding),
          ranks_text(evidence.run, finding.victims) + (finding.victims.size() == 1 ? " has been" : " have been"),
          duration_text(finding.pending_ns), clock_text(finding.since.wall_ns));
    }
    case Kind::cross_communicator_cycle:
    case Kind::order_inversion:
    case Kind::p2p_cycle:
      if (finding.severity == Severity::warning)
        return fmt::format("the order of calls differs: of {}, {}", call_text(evidence, finding), finding.detail);
      return fmt::format("ranks wait for one another in a circle: {}{}", cycle_text(evidence, finding),
                         waiting_text(evidence, finding));
    default:
      break;
  }
  if (finding.kind == Kind::died && !finding.hangs) return death_summary(evidence, finding);
  if (finding.culprits.empty()) return init_nobody_summary(evidence, finding);
  return absent_summary(evidence, finding);
}

void note_failed_init(const Evidence& evidence, Finding& finding) {
  if (finding.kind != Kind::init_incomplete || !finding.comm) return;
  for (const size_t rank : finding.culprits) {
    const Member* member = member_of(evidence.table.comms[*finding.comm], rank);
    if (!member || member->info->state != trace::CommState::failed) continue;
    for (const Call& call : evidence.file(rank).calls)
      if (call.new_comm == member->info->serial && has_failed(call))
        finding.detail = fmt::format("its init call failed with \"{}\"", abi::result_name(call.result));
  }
}

}  // namespace

bool calls_differ(const Finding& finding) {
  return finding.kind == Kind::op_mismatch || finding.kind == Kind::count_mismatch ||
         finding.kind == Kind::dtype_mismatch || finding.kind == Kind::redop_mismatch ||
         finding.kind == Kind::root_mismatch;
}

std::string duration_text(int64_t ns) {
  const int64_t ms = ns / 1'000'000;
  if (ms < 1000) return fmt::format("{} ms", ms);
  if (ms < 10'000) return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
  if (ms < 120'000) return fmt::format("{} s", ms / 1000);
  const int64_t minutes = ms / 60'000;
  if (minutes < 120) return fmt::format("{} min {} s", minutes, ms / 1000 % 60);
  return fmt::format("{} h {} min", minutes / 60, minutes % 60);
}

std::string clock_text(int64_t wall_ns) {
  if (wall_ns <= 0) return "-";
  const time_t seconds = static_cast<time_t>(wall_ns / 1'000'000'000);
  struct tm parts;
  localtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string signature_text(const Signature& s) {
  std::string text = fmt::format("{}({} x {}", s.op, s.count, s.dtype);
  if (s.redop) text += ", " + *s.redop;
  if (s.root) text += fmt::format(", root {}", *s.root);
  return text + ")";
}

std::string ranks_text(const Run& run, const std::vector<size_t>& ranks) {
  std::vector<int> numbers;
  std::string unnamed;
  for (const size_t rank : ranks) {
    if (run.ranks[rank].number >= 0) {
      numbers.push_back(run.ranks[rank].number);
    } else {
      unnamed += (unnamed.empty() ? "" : ", ") + rank_name(run, rank);
    }
  }
  std::string text = numbers.empty() ? "" : (numbers.size() == 1 ? "rank " : "ranks ") + number_ranges(numbers);
  if (!unnamed.empty()) text += (text.empty() ? "" : ", ") + unnamed;
  return text.empty() ? "nobody" : text;
}

// Culprits that cannot go on because somebody has stopped them.
void note_stopped(const Evidence& evidence, Finding& finding) {
  const auto is_stopped = [&](size_t rank) { return evidence.stopped(rank) != Stopped::no; };
  if (finding.severity != Severity::error || finding.culprits.empty() ||
      !std::all_of(finding.culprits.begin(), finding.culprits.end(), is_stopped))
    return;
  const Stopped how = evidence.stopped(finding.culprits.front());
  finding.summary += fmt::format("; {} {}", finding.culprits.size() == 1 ? "it is" : "each is", stopped_in_words(how));
  finding.next =
      how == Stopped::by_debugger
          ? "let the debugger continue it, or detach; the others wait as long as it holds the process"
          : "find out who stopped it: kill -STOP, Ctrl-Z, or a background process that read from or wrote to "
            "its terminal; kill -CONT lets it go on";
}

void explain(const Evidence& evidence, Symbolizer& symbolizer, Diagnosis& diagnosis) {
  for (Finding& finding : diagnosis.findings) {
    if (finding.kind != Kind::idle && finding.kind != Kind::missing_trace) add_stacks(evidence, symbolizer, finding);
    note_failed_init(evidence, finding);
    finding.summary = summary_of(evidence, finding);
    finding.next = next_of(finding);
    const bool lacks_traces = finding.kind == Kind::missing_trace || !finding.traceless.empty();
    if (lacks_traces && is_made_up(evidence.run.id))
      finding.next +=
          "; ranks that are started one by one need one folder (lockstep run --dir) and one LOCKSTEP_RUN_ID";
    note_stopped(evidence, finding);
  }
}

std::string verdict_sentence(const Evidence& evidence, const Diagnosis& diagnosis) {
  if (!diagnosis.findings.empty() &&
      (diagnosis.findings.front().severity == Severity::error || diagnosis.verdict == Verdict::healthy))
    return fmt::format("{}: {}", verdict_name(diagnosis.verdict), diagnosis.findings.front().summary);
  if (diagnosis.verdict == Verdict::healthy) {
    size_t ended = 0;
    for (size_t rank = 0; rank < evidence.run.ranks.size(); rank++) ended += evidence.life(rank).end != End::none;
    const size_t all = evidence.run.ranks.size();
    return fmt::format("healthy: {} ranks made the same calls on {} communicators; {}", all,
                       evidence.table.comms.size(),
                       ended == all ? "all have ended"
                       : ended == 0 ? "all are running"
                                    : fmt::format("{} have ended", ended));
  }
  return fmt::format("unknown: {}",
                     diagnosis.remarks.empty() ? "the evidence does not suffice" : diagnosis.remarks.front());
}

}  // namespace lockstep
