// SPDX-License-Identifier: MIT
//
// The ring, from slots back to calls.
//
// A record is taken by what it says of itself (its sequence and its check), not by the slot it stands in: the number of
// slots shrinks for good when a disk is full, after which a sequence lives in another slot than before. The newest
// sequences, as many as there are slots, are the ring's window. What comes before it was overwritten, and a straggler
// from there (of a writer that slept for a lap) is left out, so that each thread's calls have no gaps.
//
// Numbers are handed to threads in blocks, so many of them never become a record. One was torn when its slot says so
// (its commit word is of this number, but busy, or the check does not fit), or when a later one of its block is there:
// a thread fills its block in order. In files of format 1 numbers were handed out one by one, and each that is missing
// counts.

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_set>

#include "interpose/trace/reader_parts.h"

namespace lockstep::trace::detail {
namespace {

struct Raw {
  alignas(Record) unsigned char bytes[sizeof(Record)];
  const Record& record() const { return *reinterpret_cast<const Record*>(bytes); }
  uint64_t sequence() const { return record().commit.load(std::memory_order_relaxed) - 1; }
};

bool complete(const Record& record, uint16_t version_major) {
  const uint64_t commit = record.commit.load(std::memory_order_relaxed);
  uint64_t word[kRecordWords];
  std::memcpy(word, reinterpret_cast<const char*>(&record) + offsetof(Record, stamp), sizeof word);
  if (version_major >= 2 && ends_in_place(record.kind)) {
    const uint64_t result = word[kRecordWords - 2], stamp = word[kRecordWords - 1];
    const uint16_t check =
        end_check(commit - 1, stamp, static_cast<uint16_t>(result), static_cast<uint32_t>(result >> 32));
    if (stamp != 0 && static_cast<uint16_t>(result >> 16) != check) return false;
    word[kRecordWords - 2] = word[kRecordWords - 1] = 0;
  }
  return commit != 0 && !(commit & kBusy) && record.check == record_check(word, commit - 1);
}

// Of a slot that holds no complete record: the sequence that was being written there; UINT64_MAX = never any.
uint64_t begun(const Record& record) {
  const uint64_t commit = record.commit.load(std::memory_order_relaxed) & ~kBusy;
  return commit ? commit - 1 : UINT64_MAX;
}

std::vector<Raw> collect(const InputFile& file, const Extent& ring, uint16_t version_major,
                         std::vector<uint64_t>& unfinished) {
  std::vector<Raw> found;
  constexpr size_t kChunk = (256u << 10) / sizeof(Record);
  const auto chunk = std::make_unique_for_overwrite<Raw[]>(kChunk);
  const uint64_t end = ring.offset + ring.size / sizeof(Record) * sizeof(Record);
  for (uint64_t at = ring.offset; at < end;) {
    const uint64_t data = file.skip_hole(at, end);
    at += (data - at) / sizeof(Record) * sizeof(Record);
    const size_t want = static_cast<size_t>(std::min<uint64_t>(kChunk, (end - at) / sizeof(Record)));
    const size_t got = file.read(at, chunk.get(), want * sizeof(Record)) / sizeof(Record);
    for (size_t i = 0; i < got; i++) {
      if (complete(chunk[i].record(), version_major))
        found.push_back(chunk[i]);
      else if (const uint64_t sequence = begun(chunk[i].record()); sequence != UINT64_MAX)
        unfinished.push_back(sequence);
    }
    if (got < want || want == 0) break;
    at += got * sizeof(Record);
  }
  const auto before = [](const Raw& a, const Raw& b) { return a.sequence() < b.sequence(); };
  if (!std::is_sorted(found.begin(), found.end(), before)) std::sort(found.begin(), found.end(), before);
  const auto same = [](const Raw& a, const Raw& b) { return a.sequence() == b.sequence(); };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

void set_end(Call& call, Time when, int32_t result, uint32_t comm) {
  call.returned = true;
  call.return_time = when;
  call.result = result;
  const abi::FunctionInfo* function = abi::find_function(call.fn);
  if (function && function->kind == abi::FunctionKind::init) call.new_comm = comm;
}

Call call_of(const Record& record, const Clock& clock, uint16_t version_major) {
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
  if (version_major >= 2 && begin.end_stamp != 0)
    set_end(call, clock.at(begin.end_stamp), static_cast<int16_t>(begin.end_result),
            static_cast<uint32_t>(begin.end_result >> 32));
  return call;
}

void finish_call(const Record& record, const Clock& clock, std::vector<Call>& calls) {
  const auto at = std::lower_bound(calls.begin(), calls.end(), record.end.begin,
                                   [](const Call& call, uint64_t event) { return call.event < event; });
  if (at == calls.end() || at->event != record.end.begin) return;  // its begin was overwritten
  set_end(*at, clock.at(record.stamp), record.end.result, record.end.comm);
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
  if (record.host.end_stamp != 0) {
    call.returned = true;
    call.return_time = clock.at(record.host.end_stamp);
    call.result = static_cast<int16_t>(record.host.end_result);
  }
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

// Torn numbers in the window, when they are handed out in blocks.
uint64_t count_torn(const std::vector<Raw>& window, std::vector<uint64_t>& unfinished, uint64_t block,
                    const TraceFile& out) {
  std::vector<uint64_t> torn;
  for (uint64_t sequence : unfinished)
    if (sequence >= out.overwritten && sequence < out.events) torn.push_back(sequence);
  uint64_t expected = 0;  // of the block we are in
  for (const Raw& raw : window) {
    const uint64_t sequence = raw.sequence();
    if (sequence / block != expected / block) expected = std::max(sequence / block * block, out.overwritten);
    for (; expected < sequence; expected++) torn.push_back(expected);
    expected = sequence + 1;
  }
  std::sort(torn.begin(), torn.end());
  torn.erase(std::unique(torn.begin(), torn.end()), torn.end());
  const auto is_there = [&](uint64_t sequence) {  // written again after it was seen unfinished: the file is live
    const auto at = std::lower_bound(window.begin(), window.end(), sequence,
                                     [](const Raw& raw, uint64_t value) { return raw.sequence() < value; });
    return at != window.end() && at->sequence() == sequence;
  };
  return static_cast<uint64_t>(std::count_if(torn.begin(), torn.end(), [&](uint64_t n) { return !is_there(n); }));
}

// Removes what comes before the window and counts what is not there.
void keep_window(std::vector<Raw>& found, std::vector<uint64_t>& unfinished, const Status& status, TraceFile& out) {
  const uint64_t slots_in_use = status.ring_slots.load(std::memory_order_relaxed);
  const uint64_t block = status.ring_block.load(std::memory_order_relaxed);
  if (!found.empty()) out.events = std::max(out.events, found.back().sequence() + 1);
  const bool wraps = out.header.mode != TraceMode::full;
  out.overwritten = wraps && out.events > slots_in_use ? out.events - slots_in_use : 0;
  const auto window = std::lower_bound(found.begin(), found.end(), out.overwritten,
                                       [](const Raw& raw, uint64_t seq) { return raw.sequence() < seq; });
  found.erase(found.begin(), window);
  if (out.header.version_major >= 2 && block > 1 && block <= kSegmentBytes / sizeof(Record)) {
    out.torn = count_torn(found, unfinished, block, out);
    out.events = out.overwritten + found.size() + out.torn;
    return;
  }
  const uint64_t missing = out.events - out.overwritten - found.size();
  const uint64_t never_written = out.dropped + status.ring_skipped.load(std::memory_order_relaxed);
  out.torn = missing > never_written ? missing - never_written : 0;
}

}  // namespace

void read_ring(const InputFile& file, const Extent& ring, const Clock& clock, const Status& status, TraceFile& out) {
  std::vector<uint64_t> unfinished;
  std::vector<Raw> found = collect(file, ring, out.header.version_major, unfinished);
  keep_window(found, unfinished, status, out);
  const auto is_call = [](const Raw& raw) {
    return raw.record().kind == static_cast<uint16_t>(RecordKind::call_begin);
  };
  out.calls.reserve(static_cast<size_t>(std::count_if(found.begin(), found.end(), is_call)));
  for (const Raw& raw : found) {
    switch (static_cast<RecordKind>(raw.record().kind)) {
      case RecordKind::call_begin: out.calls.push_back(call_of(raw.record(), clock, out.header.version_major)); break;
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
