// SPDX-License-Identifier: MIT
#include "tools/job/proven.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::CommInfo;
using trace::HostCall;
using trace::TraceFile;

// A stream as it can be told from others: the default one may be each thread's own, and has the same handle in all.
using StreamKey = std::pair<uint64_t, uint32_t>;
StreamKey stream_of(uint64_t handle, uint32_t tid) {
  constexpr uint64_t kPerThread = 2;  // cudaStreamPerThread; a program built for it passes 0
  return {handle, handle == 0 || handle == kPerThread ? tid : 0};
}

// Up to which event everything on a stream, or on all of a device, has completed.
struct Proven {
  std::map<StreamKey, uint64_t> by_stream;
  std::map<int32_t, uint64_t> by_device;

  bool covers(const Call& call, int32_t device) const {
    const auto stream = by_stream.find(stream_of(call.stream, call.tid));
    const auto all = by_device.find(device);
    return (all != by_device.end() && call.event < all->second) ||
           (stream != by_stream.end() && call.event < stream->second);
  }
};

// Which device a thread waits for, as its communicators tell: the only one of the process, else the only one that the
// thread itself has called on. With several nobody knows which of them was current.
class Devices {
 public:
  explicit Devices(const TraceFile& file) {
    std::set<int32_t> all;
    for (const CommInfo& comm : file.comms) {
      of_comm_[comm.serial] = comm.device;
      all.insert(comm.device);
    }
    if (all.size() == 1) only_ = *all.begin();
    if (all.size() < 2) return;
    for (const Call& call : file.calls)
      if (const auto comm = of_comm_.find(call.comm); comm != of_comm_.end()) of_thread_[call.tid].insert(comm->second);
  }
  std::optional<int32_t> waited_for(uint32_t tid) const {
    if (only_) return only_;
    const auto its = of_thread_.find(tid);
    if (its == of_thread_.end() || its->second.size() != 1) return std::nullopt;
    return *its->second.begin();
  }
  int32_t of(uint32_t comm) const {
    const auto its = of_comm_.find(comm);
    return its == of_comm_.end() ? -1 : its->second;
  }

 private:
  std::unordered_map<uint32_t, int32_t> of_comm_;
  std::unordered_map<uint32_t, std::set<int32_t>> of_thread_;
  std::optional<int32_t> only_;
};

enum class Proof : uint8_t { none, event_record, stream_wait, device_wait, event_wait };

Proof proof_of(uint16_t fn) {
  static const std::vector<Proof> by_id = [] {
    std::vector<Proof> all;
    for (const abi::HostFunction& f : abi::kHostFunctions) {
      const auto is = [&](const char* piece) { return std::strstr(f.name, piece) != nullptr; };
      if (all.size() <= f.id) all.resize(f.id + size_t{1});
      all[f.id] = is("EventRecord")                                 ? Proof::event_record
                  : is("StreamSynchronize")                         ? Proof::stream_wait
                  : is("DeviceSynchronize") || is("CtxSynchronize") ? Proof::device_wait
                  : is("EventSynchronize")                          ? Proof::event_wait
                                                                    : Proof::none;
    }
    return all;
  }();
  return fn < by_id.size() ? by_id[fn] : Proof::none;
}

void raise(uint64_t& value, uint64_t to) { value = std::max(value, to); }

// Which streams are capturing, as NCCL's calls on them tell, at one event after the other.
class Captures {
 public:
  explicit Captures(const TraceFile& file) : calls_(file.calls) {}

  // Was the last call on the stream before that event captured? Events are to be asked for in ascending order.
  bool last_was_captured(const StreamKey& stream, uint64_t before) {
    for (; at_ < calls_.size() && calls_[at_].event < before; at_++) {
      const abi::FunctionInfo* info = abi::find_function(calls_[at_].fn);
      const bool enqueues =
          info && (info->kind == abi::FunctionKind::collective || info->kind == abi::FunctionKind::p2p);
      if (enqueues) captured_[stream_of(calls_[at_].stream, calls_[at_].tid)] = calls_[at_].flags & trace::kCaptured;
    }
    const auto found = captured_.find(stream);
    return found != captured_.end() && found->second;
  }

 private:
  const std::vector<Call>& calls_;
  size_t at_ = 0;
  std::map<StreamKey, bool> captured_;
};

Proven proven_by_waits(const TraceFile& file, const Devices& devices) {
  struct Recorded {
    StreamKey stream;
    uint64_t event = 0;
  };
  std::unordered_map<uint64_t, Recorded> events;  // by handle: where it was recorded last
  Captures captures(file);
  Proven proven;
  for (const HostCall& call : file.host_calls) {
    if (!call.returned || call.result != 0) continue;
    switch (proof_of(call.fn)) {
      case Proof::event_record:
        // Recorded into a graph it happens wherever and whenever that is launched.
        if (const StreamKey stream = stream_of(call.other, call.tid); captures.last_was_captured(stream, call.event))
          events.erase(call.object);
        else
          events[call.object] = {stream, call.event};
        break;
      case Proof::stream_wait:
        raise(proven.by_stream[stream_of(call.object, call.tid)], call.event);
        break;
      case Proof::device_wait:
        if (const std::optional<int32_t> device = devices.waited_for(call.tid))
          raise(proven.by_device[*device], call.event);
        break;
      case Proof::event_wait:
        if (const auto recorded = events.find(call.object); recorded != events.end())
          raise(proven.by_stream[recorded->second.stream], recorded->second.event);
        break;
      case Proof::none:
        break;
    }
  }
  return proven;
}

void raise_known(std::optional<uint64_t>& count, uint64_t to) {
  if (count) raise(*count, to);
}

bool is_enqueued(const Call& call) {
  return call.returned && call.result == 0 && !(call.flags & (trace::kCaptured | trace::kInGroup | trace::kGivenBack));
}

}  // namespace

void count_proven_completions(TraceFile& file) {
  if (file.host_calls.empty()) return;
  const Devices devices(file);
  const Proven proven = proven_by_waits(file, devices);
  std::unordered_map<uint32_t, uint64_t> completed;  // by communicator
  for (const Call& call : file.calls) {
    const abi::FunctionInfo* info = abi::find_function(call.fn);
    const bool counts = info && info->kind == abi::FunctionKind::collective && call.seq != UINT64_MAX && call.count > 0;
    if (counts && is_enqueued(call) && proven.covers(call, devices.of(call.comm)))
      raise(completed[call.comm], call.seq + 1);
  }
  for (CommInfo& comm : file.comms) {
    const auto count = completed.find(comm.serial);
    if (count == completed.end() || comm.blind) continue;
    raise_known(comm.coll_started, count->second);
    raise_known(comm.coll_completed, count->second);
  }
}

}  // namespace lockstep
