// SPDX-License-Identifier: MIT
//
// The sends and receives of one group. A message is matched by order between two ranks, in each direction; what it
// holds does not matter, only how many bytes. Messages to and from different peers advance independently, those of one
// pair and direction one after the other.
//
// A send is over when its receiver has copied the data, so two ranks that both send first wait for ever: correct
// programs may not rely on NCCL's buffers either. A receive smaller than its send takes what it has room for, one that
// is larger (counted in 16-byte packs, as NCCL moves them) gets what there is and never ends.

#pragma once

#include <cstdint>
#include <vector>

#include "reference/cuda/op.h"
#include "reference/nccl/collective.h"
#include "reference/nccl/comm.h"

namespace lockstep::nccl {

class Messages {
 public:
  explicit Messages(Comm& comm) : comm_(comm) {}
  void add(const Call& call);
  bool empty() const { return lanes_.empty(); }
  host::Step step();

 private:
  struct Message {
    const void* send = nullptr;
    void* recv = nullptr;
    size_t bytes = 0;
    size_t done = 0;
    bool posted = false;
    bool starved = false;  // larger than what was sent
    Staging staging;
  };
  struct Lane {  // one peer, one direction
    int peer = 0;
    bool sends = false;
    size_t next = 0;
    std::vector<Message> messages;
  };
  host::Step send(Lane& lane, Message& message);
  host::Step receive(Lane& lane, Message& message);

  Comm& comm_;
  std::vector<Lane> lanes_;
};

// Sends to oneself need their receive in the same group: nobody else could ever run it. Returns whether they pair up.
bool self_messages_pair(const Comm& comm, Calls calls);

}  // namespace lockstep::nccl
