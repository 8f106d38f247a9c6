// SPDX-License-Identifier: MIT
#include "tools/proven.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"

namespace lockstep {
namespace {

using trace::Call;
using trace::CommInfo;
using trace::HostCall;
using trace::TraceFile;

// Up to which event everything on a stream, or on all of them, has completed.
struct Proven {
  std::unordered_map<uint64_t, uint64_t> by_stream;
  uint64_t everywhere = 0;

  bool covers(const Call& call) const {
    const auto stream = by_stream.find(call.stream);
    return call.event < everywhere || (stream != by_stream.end() && call.event < stream->second);
  }
};

enum class Proof : uint8_t { none, event_record, stream_wait, device_wait, event_wait };

Proof proof_of(uint16_t fn) {
  static const std::vector<Proof> by_id = [] {
    std::vector<Proof> all;
    for (const abi::HostFunction& f : abi::kHostFunctions) {
      const auto is = [&](const char* piece) { return std::strstr(f.name, piece) != nullptr; };
      if (all.size() <= f.id) all.resize(f.id + size_t{1});
      all[f.id] = is("EventRecord")         ? Proof::event_record
                  : is("StreamSynchronize") ? Proof::stream_wait
                  : is("DeviceSynchronize") ? Proof::device_wait
                  : is("EventSynchronize")  ? Proof::event_wait
                                            : Proof::none;
    }
    return all;
  }();
  return fn < by_id.size() ? by_id[fn] : Proof::none;
}

void raise(uint64_t& value, uint64_t to) { value = std::max(value, to); }

Proven proven_by_waits(const TraceFile& file) {
  struct Recorded {
    uint64_t stream = 0, event = 0;
  };
  std::unordered_map<uint64_t, Recorded> events;  // by handle: where it was recorded last
  Proven proven;
  for (const HostCall& call : file.host_calls) {
    if (!call.returned || call.result != 0) continue;
    switch (proof_of(call.fn)) {
      case Proof::event_record:
        events[call.object] = {call.other, call.event};
        break;
      case Proof::stream_wait:
        raise(proven.by_stream[call.object], call.event);
        break;
      case Proof::device_wait:
        raise(proven.everywhere, call.event);
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
  const Proven proven = proven_by_waits(file);
  std::unordered_map<uint32_t, uint64_t> completed;  // by communicator
  for (const Call& call : file.calls) {
    const abi::FunctionInfo* info = abi::find_function(call.fn);
    const bool counts = info && info->kind == abi::FunctionKind::collective && call.seq != UINT64_MAX && call.count > 0;
    if (counts && is_enqueued(call) && proven.covers(call)) raise(completed[call.comm], call.seq + 1);
  }
  for (CommInfo& comm : file.comms) {
    const auto count = completed.find(comm.serial);
    if (count == completed.end() || comm.blind) continue;
    raise_known(comm.coll_started, count->second);
    raise_known(comm.coll_completed, count->second);
  }
}

}  // namespace lockstep
