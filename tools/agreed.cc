// SPDX-License-Identifier: MIT
#include "tools/agreed.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "interpose/abi/functions.h"

namespace lockstep {
namespace {

using abi::FunctionKind;
using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

FunctionKind kind_of(const Call& call) {
  const abi::FunctionInfo* info = abi::find_function(call.fn);
  return info ? info->kind : FunctionKind::local;
}

// No calls of count 0, whose place among the others is all that tells of them; no digests, which speak of old calls; and
// never two threads at once on a communicator.
bool is_plain(const TraceFile& file) {
  if (!file.digests.empty()) return false;
  std::unordered_map<uint32_t, const Call*> latest;  // per communicator: of those so far, the one that came back last
  const auto end_of = [](const Call& call) { return call.returned ? call.return_time.mono_ns : INT64_MAX; };
  for (const Call& call : file.calls) {
    const FunctionKind kind = kind_of(call);
    if (kind != FunctionKind::collective && kind != FunctionKind::p2p) continue;
    if (kind == FunctionKind::collective && (call.count == 0 || call.flags & trace::kZeroCount)) return false;
    const Call*& before = latest[call.comm];
    if (before && before->tid != call.tid && end_of(*before) > call.called.mono_ns) return false;
    if (!before || end_of(call) > end_of(*before)) before = &call;
  }
  return true;
}

}  // namespace

bool AgreedRows::Row::is_like(const Call& call) const {
  return fn == call.fn && count == call.count && dtype == call.dtype && redop == call.redop && peer == call.peer;
}

const AgreedRows::Row* AgreedRows::Rows::at(uint64_t seq) const {
  if (rows.empty() || seq < rows.front().seq) return nullptr;
  if (const uint64_t guess = seq - rows.front().seq; guess < rows.size() && rows[guess].seq == seq) return &rows[guess];
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), seq, [](const Row& row, uint64_t wanted) { return row.seq < wanted; });
  return found != rows.end() && found->seq == seq ? &*found : nullptr;
}

void AgreedRows::add_head(const TraceFile& head, size_t file) {
  for (const CommInfo& comm : head.comms) {
    if (comm.id == 0) continue;
    Rows& rows = comms_[comm.id];
    if (rows.files == 0) {
      rows.first_file = file;
      rows.nranks = comm.nranks;
    }
    // Twice in a process: another generation, or ranks that are threads.
    const bool again = rows.files > 0 && rows.last_file == file;
    rows.usable &= !again && comm.nranks == rows.nranks && comm.coll_completed.has_value();
    rows.files++;
    rows.last_file = file;
    rows.end = std::min({rows.end, comm.coll_completed.value_or(0), comm.coll_called});
  }
}

std::vector<size_t> AgreedRows::settle() {
  std::set<size_t> files;
  for (auto at = comms_.begin(); at != comms_.end();) {
    Rows& rows = at->second;
    const bool all = rows.nranks > 0 && rows.files == static_cast<size_t>(rows.nranks);
    if (!rows.usable || !all || rows.end <= kept_rows_) {
      at = comms_.erase(at);
      continue;
    }
    rows.end -= kept_rows_;
    files.insert(rows.first_file);
    ++at;
  }
  return {files.begin(), files.end()};
}

void AgreedRows::learn(const TraceFile& file, size_t number) {
  for (const CommInfo& comm : file.comms) {
    const auto found = comms_.find(comm.id);
    if (found == comms_.end() || found->second.first_file != number) continue;
    Rows& rows = found->second;
    std::set<std::tuple<uint16_t, uint64_t, uint8_t, int32_t, int32_t>> seen;
    for (const Call& call : file.calls) {
      if (call.comm != comm.serial || kind_of(call) != FunctionKind::collective || call.seq >= rows.end) continue;
      if (!rows.rows.empty() && call.seq <= rows.rows.back().seq) continue;  // out of order: kept
      const bool first = seen.insert({call.fn, call.count, call.dtype, call.redop, call.peer}).second;
      rows.rows.push_back({call.seq, call.count, call.fn, call.dtype, first, call.redop, call.peer});
    }
  }
}

bool AgreedRows::shrink(TraceFile& file) const {
  if (!is_plain(file)) return false;
  std::unordered_map<uint32_t, const Rows*> rows_of;
  for (const CommInfo& comm : file.comms)
    if (const auto found = comms_.find(comm.id); found != comms_.end()) rows_of[comm.serial] = &found->second;
  std::vector<bool> goes(file.calls.size());
  std::map<std::tuple<uint32_t, uint64_t, uint32_t>, size_t> last;  // communicator, stream, thread -> newest that goes
  size_t kept = 0;
  for (size_t i = 0; i < file.calls.size(); i++) {
    const Call& call = file.calls[i];
    kept++;
    if (kind_of(call) != FunctionKind::collective) continue;
    const auto found = rows_of.find(call.comm);
    if (found == rows_of.end() || call.seq >= found->second->end) continue;
    const Rows& rows = *found->second;
    if (rows.rows.empty() || call.seq < rows.rows.front().seq) continue;  // not on record there
    // All that is compared is compared before anything else is asked, so that one odd call keeps the whole job.
    const Row* row = rows.at(call.seq);
    if (!row || !row->is_like(call)) return false;
    constexpr uint16_t kHarmless = trace::kInPlace | trace::kTold;
    if (call.group || (call.flags & ~kHarmless) || row->first || !call.returned || call.result != 0) continue;
    goes[i] = true;
    last[{call.comm, call.stream, call.tid}] = i;
    kept--;
  }
  for (const auto& [where, i] : last) {
    goes[i] = false;
    kept++;
  }
  std::vector<Call> calls;
  calls.reserve(kept);
  for (size_t i = 0; i < file.calls.size(); i++)
    if (!goes[i]) calls.push_back(file.calls[i]);
  file.calls = std::move(calls);
  file.marks.shrink_to_fit();
  return true;
}

}  // namespace lockstep
