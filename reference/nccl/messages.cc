// SPDX-License-Identifier: MIT
//
// See messages.h.

#include "reference/nccl/messages.h"

#include <algorithm>
#include <cstring>

#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

using host::Step;

constexpr size_t kStepBytes = 256u << 10;
constexpr size_t kPackBytes = 16;

size_t packs(size_t bytes) { return (bytes + kPackBytes - 1) / kPackBytes; }

}  // namespace

void Messages::add(const Call& call) {
  const bool sends = call.fn == abi::Fn::Send;
  auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                           [&](const Lane& l) { return l.peer == call.root && l.sends == sends; });
  if (lane == lanes_.end()) {
    lanes_.emplace_back();
    lane = lanes_.end() - 1;
    lane->peer = call.root;
    lane->sends = sends;
  }
  Message& message = lane->messages.emplace_back();
  message.send = call.send;
  message.recv = call.recv;
  message.bytes = call.bytes();
}

Step Messages::step() {
  Step result = Step::done;
  for (Lane& lane : lanes_) {
    if (lane.next == lane.messages.size()) continue;
    Message& message = lane.messages[lane.next];
    const Step step = lane.sends ? send(lane, message) : receive(lane, message);
    if (step == Step::done) ++lane.next;
    if (step == Step::waiting && result == Step::done) result = Step::waiting;
    if (step == Step::progressed || (step == Step::done && lane.next < lane.messages.size())) result = Step::progressed;
  }
  return result;
}

Step Messages::send(Lane& lane, Message& message) {
  const auto peer = static_cast<size_t>(lane.peer);
  Edge& edge = comm_.control->edge(comm_.rank, lane.peer);
  if (message.posted) {
    if (edge.taken.load(std::memory_order_seq_cst) <= comm_.sent[peer]) return Step::waiting;
    ++comm_.sent[peer];
    return Step::done;
  }
  const void* from = message.send;
  if (message.bytes != 0 && !comm_.same_process[peer] && !comm_.reachable(from)) {
    std::byte* const to = message.staging.get(message.bytes, comm_.device);
    if (to == nullptr) {
      warn("the shared heap is full: no room for a copy of %zu bytes of a buffer that is not CUDA memory",
           message.bytes);
      comm_.async_error.store(ncclSystemError);
      return Step::waiting;
    }
    const size_t piece = std::min(kStepBytes, message.bytes - message.done);
    std::memcpy(to + message.done, static_cast<const std::byte*>(from) + message.done, piece);
    message.done += piece;
    if (message.done < message.bytes) return Step::progressed;
    from = to;
  }
  edge.bytes = message.bytes;
  edge.from = comm_.locate(from);
  edge.posted.store(comm_.sent[peer] + 1, std::memory_order_seq_cst);
  comm_.control->member(lane.peer).bell.ring();
  message.posted = true;
  return Step::progressed;
}

Step Messages::receive(Lane& lane, Message& message) {
  const auto peer = static_cast<size_t>(lane.peer);
  Edge& edge = comm_.control->edge(lane.peer, comm_.rank);
  if (message.starved || edge.posted.load(std::memory_order_seq_cst) <= comm_.received[peer]) return Step::waiting;
  const size_t sent = edge.bytes;
  const size_t bytes = std::min(sent, message.bytes);
  if (message.done < bytes) {
    const std::byte* from = comm_.reach(lane.peer, edge.from);
    if (from == nullptr) return Step::waiting;  // the sender has died
    const size_t piece = std::min(kStepBytes, bytes - message.done);
    std::memmove(static_cast<std::byte*>(message.recv) + message.done, from + message.done, piece);
    message.done += piece;
    if (message.done < bytes) return Step::progressed;
  }
  ++comm_.received[peer];
  edge.taken.store(comm_.received[peer], std::memory_order_seq_cst);
  comm_.control->member(lane.peer).bell.ring();
  message.starved = packs(message.bytes) > packs(sent);
  return message.starved ? Step::progressed : Step::done;
}

bool self_messages_pair(const Comm& comm, Calls calls) {
  int sends = 0;
  int receives = 0;
  for (const Call& call : calls) {
    if (call.fn != abi::Fn::Send && call.fn != abi::Fn::Recv) continue;
    if (call.root == comm.rank) (call.fn == abi::Fn::Send ? sends : receives)++;
  }
  if (sends > receives) warn("Trying to send to self without a matching recv");
  if (receives > sends) warn("Trying to recv to self without a matching send");
  return sends == receives;
}

}  // namespace lockstep::nccl
