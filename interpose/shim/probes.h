// SPDX-License-Identifier: MIT
//
// What the two sides of states.h share: the probes, a ring of them a communicator.

#pragma once

#include "interpose/shim/libc.h"

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "interpose/shim/comms.h"
#include "interpose/trace/format.h"

namespace lockstep::shim {

enum class ProbeState : uint32_t { free, filling, out, nothing };

// Of a communicator: its operations so far.
struct Counts {
  uint64_t collectives, messages;
};

struct Probe {
  std::atomic<ProbeState> state;
  uint32_t turn;     // how often it was armed: an answer counts for the turn it was asked in
  bool started;      // the event in front was seen to be done
  bool has_earlier;  // it was taken from an operation whose end is not known yet
  void* before;
  void* after;
  void* earlier;  // the event behind the operation it was taken from
  Counts counts;  // this operation included
  Counts counts_before;
  Counts counts_earlier;
};

constexpr uint32_t kProbes = 256;
constexpr uint32_t kRings = trace::kCommSlots;

struct ProbeRing {
  std::atomic<uint32_t>
      lock;  // guards comm, head, tail and the turns; held for a few stores, never while CUDA is called
  std::atomic<uint64_t> head;  // probes taken so far
  std::atomic<uint64_t> tail;  // probes answered so far
  std::atomic<uint32_t> used;  // 0 = may be given to a communicator
  Comm* comm;                  // nullptr = it has ended: what is out is dropped
  void* context;
  Probe probes[kProbes];
};

// Rings are made once and given on from one communicator to the next; they are never freed.
struct Rings {
  std::atomic<ProbeRing*> at[kRings];
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> wanted;   // something was watched: the driver thread is to start
  std::atomic<uint32_t> running;  // it has been started
  std::atomic<uint32_t> bell;     // futex: it is to ask now
};
extern Rings rings;

inline void lock(std::atomic<uint32_t>& word) {
  while (word.exchange(1, std::memory_order_acquire)) sched_yield();
}
inline void unlock(std::atomic<uint32_t>& word) { word.store(0, std::memory_order_release); }

constexpr int kRelaxedCapture = 2;  // of cuThreadExchangeStreamCaptureMode: what we do breaks nobody's capture

void ring_the_bell();  // wakes the driver thread

}  // namespace lockstep::shim
