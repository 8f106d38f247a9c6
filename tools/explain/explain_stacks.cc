// SPDX-License-Identifier: MIT
//
// Which of the stacks on record tells most of a rank.

#include <fmt/format.h>

#include <algorithm>

#include "tools/explain/explain_parts.h"
#include "tools/job/lookup.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::Snapshot;

constexpr size_t kFrames = 12;

std::string thread_name(const trace::TraceFile& file, uint32_t tid, const std::string& name) {
  if (tid == static_cast<uint32_t>(file.header.pid)) return "main";
  return name.empty() ? fmt::format("thread {}", tid) : name;
}

// Last function of each kind of wait that is not where a program's story is told.
bool makes_nccl_calls(const trace::TraceFile& file, uint32_t tid) {
  return std::any_of(file.calls.rbegin(), file.calls.rend(), [&](const Call& call) { return call.tid == tid; });
}

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

void add_stack(const Evidence& evidence, Symbolizer& symbolizer, Finding& finding, size_t rank) {
  // Where calls differ, the place of the call is what one looks for; else the place where the rank is now.
  std::optional<ThreadStack> stack =
      calls_differ(finding) ? from_call(evidence, symbolizer, finding, rank) : std::nullopt;
  if (!stack) stack = from_snapshot(evidence, symbolizer, rank);
  if (!stack) stack = from_call(evidence, symbolizer, finding, rank);
  if (!stack || stack->frames.empty()) return;
  if (stack->frames.size() > kFrames) stack->frames.resize(kFrames);
  finding.stacks[rank] = std::move(*stack);
}

}  // namespace

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

}  // namespace lockstep
