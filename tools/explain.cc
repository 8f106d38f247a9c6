// SPDX-License-Identifier: MIT
#include "tools/explain.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "interpose/abi/functions.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::Snapshot;

constexpr size_t kFrames = 8;

bool is_its_thread(const Rank& rank, uint32_t tid) {
  return rank.tids.empty() || std::find(rank.tids.begin(), rank.tids.end(), tid) != rank.tids.end();
}

std::string thread_name(const trace::TraceFile& file, uint32_t tid, const std::string& name) {
  if (tid == static_cast<uint32_t>(file.header.pid)) return "main";
  return name.empty() ? fmt::format("thread {}", tid) : name;
}

// Last function of each kind of wait that is not where a program's story is told.
bool makes_nccl_calls(const trace::TraceFile& file, uint32_t tid) {
  return std::any_of(file.calls.rbegin(), file.calls.rend(), [&](const Call& call) { return call.tid == tid; });
}

// --- stacks
// ------------------------------------------------------------------------------------------------------------------

// Of the newest snapshot, the thread that tells most: one of the rank's that sits in the user's own code, best one that
// makes NCCL calls; the main thread before the rest.
std::optional<ThreadStack> from_snapshot(const Evidence& evidence, Symbolizer& symbolizer, size_t rank) {
  const trace::TraceFile& file = evidence.file(rank);
  if (file.snapshots.empty()) return std::nullopt;
  const uint32_t newest = file.snapshots.back().round;
  std::optional<ThreadStack> best;
  int best_score = -1;
  for (const Snapshot& snapshot : file.snapshots) {
    if (snapshot.round != newest || snapshot.pcs.empty()) continue;
    const bool own = is_its_thread(evidence.run.ranks[rank], snapshot.tid);
    if (!own && !evidence.run.ranks[rank].tids.empty()) continue;
    ThreadStack stack;
    stack.thread = thread_name(file, snapshot.tid, snapshot.thread_name);
    stack.origin = "now";
    stack.frames = without_noise(symbolizer.name_all(file, snapshot.pcs, true));
    const bool user = users_frame(stack.frames) != nullptr;
    const int score =
        (user ? 4 : 0) + (makes_nccl_calls(file, snapshot.tid) ? 2 : 0) + (stack.thread == "main" ? 1 : 0);
    if (score <= best_score) continue;
    best_score = score;
    best = std::move(stack);
  }
  return best;
}

const Member* member_of(const Comm& comm, size_t rank) {
  for (const Member& member : comm.members)
    if (member.rank == rank) return &member;
  return nullptr;
}

// The stack recorded with the call in question, else with the rank's newest call.
std::optional<ThreadStack> from_call(const Evidence& evidence, Symbolizer& symbolizer, const Finding& finding,
                                     size_t rank) {
  const trace::TraceFile& file = evidence.file(rank);
  const Call* call = nullptr;
  if (finding.comm && finding.seq)
    if (const Member* member = member_of(evidence.table.comms[*finding.comm], rank))
      call = member->call_at(*finding.seq);
  for (auto at = file.calls.rbegin(); at != file.calls.rend() && !call; ++at)
    if (at->stack && is_its_thread(evidence.run.ranks[rank], at->tid)) call = &*at;
  if (!call) return std::nullopt;
  const std::vector<uint64_t> pcs = file.stack(call->stack);
  if (pcs.empty()) return std::nullopt;
  ThreadStack stack;
  stack.thread = thread_name(file, call->tid, "");
  stack.origin = "call";
  stack.frames = without_noise(symbolizer.name_all(file, pcs, false));
  return stack;
}

bool is_mismatch(const Finding& finding) {
  return finding.kind == Kind::op_mismatch || finding.kind == Kind::count_mismatch ||
         finding.kind == Kind::dtype_mismatch || finding.kind == Kind::redop_mismatch ||
         finding.kind == Kind::root_mismatch;
}

void add_stack(const Evidence& evidence, Symbolizer& symbolizer, Finding& finding, size_t rank) {
  // Where calls differ, the place of the call is what one looks for; else the place where the rank is now.
  std::optional<ThreadStack> stack =
      is_mismatch(finding) ? from_call(evidence, symbolizer, finding, rank) : std::nullopt;
  if (!stack) stack = from_snapshot(evidence, symbolizer, rank);
  if (!stack) stack = from_call(evidence, symbolizer, finding, rank);
  if (!stack || stack->frames.empty()) return;
  if (stack->frames.size() > kFrames) stack->frames.resize(kFrames);
  finding.stacks[rank] = std::move(*stack);
}

void add_stacks(const Evidence& evidence, Symbolizer& symbolizer, Finding& finding) {
  constexpr size_t kMost = 16;  // of a thousand culprits the first few will do
  for (size_t i = 0; i < finding.culprits.size() && i < kMost; i++)
    add_stack(evidence, symbolizer, finding, finding.culprits[i]);
  for (const size_t rank : finding.victims) {
    if (finding.stacks.count(rank)) continue;
    add_stack(evidence, symbolizer, finding, rank);
    if (finding.stacks.count(rank) && !finding.culprits.empty()) return;  // one to compare with
    if (finding.stacks.size() >= kMost) return;
  }
}

// --- words
// -------------------------------------------------------------------------------------------------------------------

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
  if (is_mismatch(finding)) return mismatch_summary(evidence, finding);
  switch (finding.kind) {
    case Kind::p2p_size_mismatch:
      return sizes_summary(evidence, finding);
    case Kind::not_started:
      return fmt::format("{} {} made {}, and it has not started on the device; on {} it has{}",
                         who(evidence.run, finding.culprits), finding.culprits.size() == 1 ? "has" : "have",
                         call_text(evidence, finding), ranks_text(evidence.run, finding.victims),
                         waiting_text(evidence, finding));
    case Kind::host_blocked:
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

std::string next_of(const Finding& finding) {
  switch (finding.kind) {
    case Kind::missing_call:
      return "look at the function it sits in and at the condition that led there: unequal batch counts, a test of the "
             "rank, or a decision made by one rank alone";
    case Kind::left_early:
      return "compare how many steps or batches each rank was given, and make all ranks leave the loop by a common "
             "decision";
    case Kind::died:
      return "read that rank's own log and core dump at the time of its end; the other ranks are victims";
    case Kind::op_mismatch:
      return "compare the two stacks: the ranks took different branches before this call";
    case Kind::count_mismatch:
      return "compare the sizes that lead to this call on both ranks: batch, padding, or a shape decided by one rank "
             "alone";
    case Kind::dtype_mismatch:
      return "compare the data types on both ranks: mixed precision or a configuration that differs";
    case Kind::redop_mismatch:
      return "compare the reduction passed on both ranks; sum and average differ by the number of ranks";
    case Kind::root_mismatch:
      return "check whether a global rank was passed where a rank of the communicator is meant";
    case Kind::init_incomplete:
      return "find out why it never came to create the communicator: an error before it, or a condition that left it "
             "out";
    case Kind::cross_communicator_cycle:
      return "give all ranks one order in which they use these communicators";
    case Kind::p2p_cycle:
      return "put sends and receives that depend on each other between ncclGroupStart and ncclGroupEnd";
    case Kind::p2p_unmatched:
      return "check which peer and how many messages each of the two ranks believes in";
    case Kind::stalled_together:
      return "the calls agree, so look below them: device state, other streams, network and NCCL's own log "
             "(NCCL_DEBUG=INFO) on every node";
    case Kind::missing_trace:
      return "find out whether that rank ran at all and where it wrote its trace, then diagnose again with it";
    case Kind::straggler:
      return "see what the late rank does; the call may still come";
    case Kind::idle:
      return "nothing to do if the job has no work at the moment";
    case Kind::wrong_communicator:
      return "check which group that call was meant for: it belongs on the smaller one, or all ranks must make it";
    case Kind::order_inversion:
      return "give all ranks one order in which they use these communicators, and wait for one before using the other";
    case Kind::p2p_size_mismatch:
      return "compare the sizes both ends pass: variable lengths must be exchanged first, and with two stages the "
             "messages of forward and backward pass must not cross";
    case Kind::group_mismatch:
      return "compare the lists of sends and receives both ends put between ncclGroupStart and ncclGroupEnd";
    case Kind::concurrent_use:
      return "let one thread at a time use a communicator, or give each thread its own";
    case Kind::teardown_order:
      return "destroy communicators in one order on all ranks, after all work on them has ended";
    case Kind::duplicate_device:
      return "set the device of each process before its first NCCL call, by its local rank";
    case Kind::not_started:
      return "see what was put on that stream before the call: a kernel that never ends, or work of another stream it "
             "waits for";
    case Kind::host_blocked:
      return "see what that stream or event was waiting for: the work on it is not NCCL's";
    case Kind::comm_error:
      return "read NCCL's own log of that rank (NCCL_DEBUG=WARN) at that time; the other ranks are victims";
    case Kind::environment_differs:
      return "start all ranks with the same libraries and the same NCCL_* variables";
    case Kind::group_size:
      return "check how the ranks were launched: each set made a world of its own";
    case Kind::duplicate_data:
      return "check that the sampler is told the rank and the size of the data-parallel group, and that its seed is "
             "common";
    case Kind::result_divergence:
      return "suspect that rank's device or memory, or a buffer that was read or written before the call had completed";
  }
  return "";
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

void explain(const Evidence& evidence, Symbolizer& symbolizer, Diagnosis& diagnosis) {
  for (Finding& finding : diagnosis.findings) {
    if (finding.kind != Kind::idle && finding.kind != Kind::missing_trace) add_stacks(evidence, symbolizer, finding);
    note_failed_init(evidence, finding);
    finding.summary = summary_of(evidence, finding);
    finding.next = next_of(finding);
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

// --- table of ranks
// ------------------------------------------------------------------------------------------------------------

namespace {

std::string state_text(const Evidence& evidence, const Diagnosis& diagnosis, size_t rank) {
  const Life& life = evidence.life(rank);
  std::string end = life.end == End::none ? "" : end_in_words(life);
  if (diagnosis.findings.empty() || !diagnosis.findings.front().comm || !diagnosis.findings.front().seq)
    return end.empty() ? "running" : end;
  const Finding& finding = diagnosis.findings.front();
  const Comm& comm = evidence.table.comms[*finding.comm];
  const uint64_t seq = finding.stuck_seq.value_or(*finding.seq);
  const std::string what = fmt::format("#{} on {}", seq, comm.name);
  const Member* member = member_of(comm, rank);
  std::string state;
  if (!member) {
    state = fmt::format("not in {}", comm.name);
  } else if (member->launched <= seq) {
    state =
        member->called > seq ? fmt::format("{} inside a group never closed", what) : fmt::format("{} not called", what);
  } else {
    const Call* call = member->call_at(seq);
    const bool open = call && !call->returned && member->info->coll_returned <= seq;
    state = open ? fmt::format("{} called, not returned", what) : fmt::format("{} returned (enqueued)", what);
    if (member->info->coll_completed && *member->info->coll_completed > seq) state = fmt::format("{} completed", what);
  }
  return end.empty() ? state : state + "; " + end;
}

std::string last_call_text(const Evidence& evidence, size_t rank) {
  const Call* newest = nullptr;
  std::string text = "-";
  for (const Comm& comm : evidence.table.comms) {
    const Member* member = member_of(comm, rank);
    if (!member || member->collectives.empty()) continue;
    const Call* call = member->collectives.back();
    if (newest && newest->event > call->event) continue;
    newest = call;
    text = fmt::format("{} #{} on {}", op_name(*call), call->seq, comm.name);
  }
  return text;
}

}  // namespace

RankState rank_state(const Evidence& evidence, const Diagnosis& diagnosis, size_t rank) {
  RankState state;
  state.state = state_text(evidence, diagnosis, rank);
  state.last_call = last_call_text(evidence, rank);
  state.step = "-";
  for (const trace::ThreadInfo& thread : evidence.file(rank).threads)
    if (thread.step && is_its_thread(evidence.run.ranks[rank], thread.tid)) state.step = std::to_string(*thread.step);
  state.sign = clock_text(evidence.life(rank).seen.wall_ns);
  return state;
}

}  // namespace lockstep
