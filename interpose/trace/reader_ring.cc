// SPDX-License-Identifier: MIT
//
// The ring, from slots back to calls.
//
// A record is taken by what it says of itself (its sequence and its check), not by the slot it stands in: the number of
// slots shrinks for good when a disk is full, after which a sequence lives in another slot than before. The newest
// sequences, as many as there are slots, are the ring's window. What is missing in it was torn; what comes before it was
// overwritten, and a straggler from there (of a writer that slept for a lap) is left out, so that calls have no gaps.

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "interpose/trace/reader_parts.h"

namespace lockstep::trace::detail {
namespace {

struct Raw {
  alignas(Record) unsigned char bytes[sizeof(Record)];
  const Record& record() const { return *reinterpret_cast<const Record*>(bytes); }
  uint64_t sequence() const { return record().commit.load(std::memory_order_relaxed) - 1; }
};

bool complete(const Record& record) {
  const uint64_t commit = record.commit.load(std::memory_order_relaxed);
  uint64_t word[kRecordWords];
  std::memcpy(word, reinterpret_cast<const char*>(&record) + offsetof(Record, stamp), sizeof word);
  return commit != 0 && !(commit & kBusy) && record.check == record_check(word, commit - 1);
}

std::vector<Raw> collect(const InputFile& file, const Extent& ring) {
  std::vector<Raw> found;
  std::vector<Raw> chunk(kSegmentBytes / sizeof(Record));
  const uint64_t end = ring.offset + ring.size / sizeof(Record) * sizeof(Record);
  for (uint64_t at = ring.offset; at < end;) {
    const uint64_t data = file.skip_hole(at, end);
    at += (data - at) / sizeof(Record) * sizeof(Record);
    const size_t want = static_cast<size_t>(std::min<uint64_t>(chunk.size(), (end - at) / sizeof(Record)));
    const size_t got = file.read(at, chunk.data(), want * sizeof(Record)) / sizeof(Record);
    for (size_t i = 0; i < got; i++)
      if (complete(chunk[i].record())) found.push_back(chunk[i]);
    if (got < want || want == 0) break;
    at += got * sizeof(Record);
  }
  std::sort(found.begin(), found.end(), [](const Raw& a, const Raw& b) { return a.sequence() < b.sequence(); });
  const auto same = [](const Raw& a, const Raw& b) { return a.sequence() == b.sequence(); };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

Call call_of(const Record& record, const Clock& clock) {
  const auto& begin = record.begin;
  Call call;
  call.event = record.commit.load(std::memory_order_relaxed) - 1;
  call.fn = record.fn;
  call.tid = record.tid;
  call.comm = begin.comm;
  call.peer = begin.peer;
  call.count = begin.count;
  call.seq = begin.seq;
  call.redop = begin.redop;
  call.dtype = begin.dtype;
  call.group_depth = begin.group_depth;
  call.flags = begin.flags;
  call.group = begin.group;
  call.sendbuff = begin.sendbuff;
  call.recvbuff = begin.recvbuff;
  call.stream = begin.stream;
  call.stack = begin.native_stack;
  if (begin.mark_bits & kHasStep) call.step = begin.step;
  call.called = clock.at(record.stamp);
  const abi::FunctionInfo* function = abi::find_function(record.fn);
  const bool makes_comm = function && function->kind == abi::FunctionKind::init;
  if (makes_comm && !abi::has_role(function->fn, abi::ArgRole::comm)) call.new_comm = begin.comm;
  return call;
}

void finish_call(const Record& record, const Clock& clock, std::vector<Call>& calls) {
  const auto at = std::lower_bound(calls.begin(), calls.end(), record.end.begin,
                                   [](const Call& call, uint64_t event) { return call.event < event; });
  if (at == calls.end() || at->event != record.end.begin) return;  // its begin was overwritten
  at->returned = true;
  at->return_time = clock.at(record.stamp);
  at->result = record.end.result;
  const abi::FunctionInfo* function = abi::find_function(at->fn);
  if (function && function->kind == abi::FunctionKind::init) at->new_comm = record.end.comm;
}

HostCall host_call_of(const Record& record, const Clock& clock) {
  HostCall call;
  call.event = record.commit.load(std::memory_order_relaxed) - 1;
  call.fn = record.fn;
  if (const abi::HostFunction* function = abi::find_host_function(record.fn)) call.kind = function->kind;
  call.tid = record.tid;
  call.object = record.host.object;
  call.other = record.host.other;
  call.bytes = record.host.bytes;
  call.comm_calls = record.host.comm_calls;
  call.stack = record.host.native_stack;
  if (record.host.mark_bits & kHasStep) call.step = record.host.step;
  call.called = clock.at(record.stamp);
  call.returned = call.kind == abi::HostKind::order;
  if (call.returned) call.return_time = call.called;
  return call;
}

void finish_host_call(const Record& record, const Clock& clock, std::vector<HostCall>& calls) {
  const auto at = std::lower_bound(calls.begin(), calls.end(), record.host_end.begin,
                                   [](const HostCall& call, uint64_t event) { return call.event < event; });
  if (at == calls.end() || at->event != record.host_end.begin) return;  // its begin was overwritten
  at->returned = true;
  at->return_time = clock.at(record.stamp);
  at->result = record.host_end.result;
}

Digest digest_of(const Record& record, const Clock& clock) {
  Digest digest;
  digest.call = record.digest.call;
  digest.fn = record.fn;
  digest.comm = record.digest.comm;
  digest.seq = record.digest.seq;
  digest.output = record.digest.output != 0;
  digest.value = record.digest.value;
  digest.bytes = record.digest.bytes;
  digest.when = clock.at(record.stamp);
  return digest;
}

MarkEvent mark_of(const Record& record, const Clock& clock) {
  MarkEvent mark;
  mark.event = record.commit.load(std::memory_order_relaxed) - 1;
  mark.tid = record.tid;
  mark.kind = record.fn;
  mark.value = record.mark.value;
  mark.text = text_of(record.mark.text);
  mark.when = clock.at(record.stamp);
  return mark;
}

bool failed(const Call& call) { return call.returned && call.result != 0 && call.result != 7 /* ncclInProgress */; }

// A number taken by a call that failed, or by a member of a group that failed or was only simulated, was given back.
void give_back(std::vector<Call>& calls) {
  std::unordered_set<uint32_t> void_groups;
  for (const Call& call : calls) {
    const bool end = call.fn == static_cast<uint16_t>(abi::Fn::GroupEnd);
    const bool simulated = call.fn == static_cast<uint16_t>(abi::Fn::GroupSimulateEnd);
    if (call.group_depth == 1 && call.returned && (simulated || (end && failed(call)))) void_groups.insert(call.group);
  }
  for (Call& call : calls) {
    if (!failed(call) && !((call.flags & kInGroup) && void_groups.count(call.group))) continue;
    call.flags |= kGivenBack;
    call.seq = UINT64_MAX;
  }
}

// Removes what comes before the window and counts what is not there.
void keep_window(std::vector<Raw>& found, uint64_t slots_in_use, uint64_t skipped, TraceFile& out) {
  if (!found.empty()) out.events = std::max(out.events, found.back().sequence() + 1);
  out.overwritten = out.events > slots_in_use ? out.events - slots_in_use : 0;
  const auto window = std::lower_bound(found.begin(), found.end(), out.overwritten,
                                       [](const Raw& raw, uint64_t seq) { return raw.sequence() < seq; });
  found.erase(found.begin(), window);
  const uint64_t missing = out.events - out.overwritten - found.size();
  const uint64_t never_written = out.dropped + skipped;
  out.torn = missing > never_written ? missing - never_written : 0;
}

}  // namespace

void read_ring(const InputFile& file, const Extent& ring, const Clock& clock, const Status& status, TraceFile& out) {
  std::vector<Raw> found = collect(file, ring);
  keep_window(found, status.ring_slots.load(std::memory_order_relaxed),
              status.ring_skipped.load(std::memory_order_relaxed), out);
  for (const Raw& raw : found) {
    switch (static_cast<RecordKind>(raw.record().kind)) {
      case RecordKind::call_begin: out.calls.push_back(call_of(raw.record(), clock)); break;
      case RecordKind::call_end: finish_call(raw.record(), clock, out.calls); break;
      case RecordKind::mark: out.marks.push_back(mark_of(raw.record(), clock)); break;
      case RecordKind::host_begin: out.host_calls.push_back(host_call_of(raw.record(), clock)); break;
      case RecordKind::host_end: finish_host_call(raw.record(), clock, out.host_calls); break;
      case RecordKind::digest: out.digests.push_back(digest_of(raw.record(), clock)); break;
      default: break;  // of a newer minor version
    }
  }
  give_back(out.calls);
}

}  // namespace lockstep::trace::detail
