// SPDX-License-Identifier: MIT
//
// See collective.h.

#include "reference/nccl/collective.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "reference/nccl/log.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

using abi::Fn;
using host::Step;

constexpr size_t kStepBytes = 256u << 10;  // of one step(), so that other streams get their turn
constexpr size_t kLine = 64;

enum class Mismatch { by_chunks, hang, finish };
Mismatch mismatch_rule() {
  static const Mismatch rule = [] {
    const char* const text = setting("LOCKSTEP_HOST_MISMATCH");
    const std::string_view value = text == nullptr ? "" : text;
    if (value == "hang") return Mismatch::hang;
    if (value == "finish") return Mismatch::finish;
    if (!value.empty())
      std::fprintf(stderr,
                   "lockstep host runtime: LOCKSTEP_HOST_MISMATCH is '%s', expected hang or finish; it is ignored\n",
                   text);
    return Mismatch::by_chunks;
  }();
  return rule;
}

// Of the step at work; kept, for an allocation costs as much as reducing a few numbers.
thread_local std::vector<Input> t_inputs;

size_t chunks(size_t bytes) { return (bytes + kMismatchChunkBytes - 1) / kMismatchChunkBytes; }
bool sizes_agree(size_t a, size_t b) {
  if (a == b || mismatch_rule() == Mismatch::finish) return true;
  return mismatch_rule() == Mismatch::by_chunks && chunks(a) == chunks(b);
}

// memcpy between buffers that may be one and the same.
void move_bytes(std::byte* dst, const std::byte* src, size_t bytes) {
  if (dst != src && bytes != 0) std::memmove(dst, src, bytes);
}

}  // namespace

Collective::Collective(Comm& comm, const Call& call) : comm_(comm), call_(call) {}

size_t Collective::send_bytes() const {
  if (call_.fn == Fn::ReduceScatter) return block() * static_cast<size_t>(comm_.nranks);
  if (call_.fn == Fn::Broadcast && comm_.rank != call_.root) return 0;
  return block();
}

Descriptor& Collective::descriptor(int rank) const { return comm_.control->member(rank).descriptors[index_ % 2]; }

// --- meetings
// --------------------------------------------------------------------------------------------------------------

void Collective::arrive() {
  Header& header = comm_.control->header();
  my_phase_ = comm_.phase++;
  const uint64_t all = static_cast<uint64_t>(comm_.nranks) * (my_phase_ + 1);
  if (header.arrivals.fetch_add(1, std::memory_order_seq_cst) + 1 >= all) header.bell.ring();
}
bool Collective::met() const {
  const uint64_t all = static_cast<uint64_t>(comm_.nranks) * (my_phase_ + 1);
  return comm_.control->header().arrivals.load(std::memory_order_seq_cst) >= all;
}

Step Collective::step() {
  switch (state_) {
    case State::start:
      return publish();
    case State::stage:
      return stage();
    case State::meet:
      if (!met()) return Step::waiting;
      settle();
      return state_ == State::over ? Step::done : Step::progressed;
    case State::stuck:
      return Step::waiting;
    case State::slice:
      return slice();
    case State::swap:
      if (!met()) return Step::waiting;
      state_ = State::gather;
      return Step::progressed;
    case State::gather:
      return call_.fn == Fn::AllReduce ? gather() : copy_blocks();
    case State::leave:
      if (!met()) return Step::waiting;
      state_ = State::over;
      return Step::done;
    case State::over:
      break;
  }
  return Step::done;
}

// --- telling the others
// ----------------------------------------------------------------------------------------------------

Step Collective::publish() {
  index_ = comm_.collectives++;
  Descriptor& mine = descriptor(comm_.rank);
  mine.fn = static_cast<uint32_t>(call_.fn);
  mine.root = call_.root;
  mine.bytes = block();
  mine.scale = call_.scale_now();
  // The same for all ranks of a correct program, root or not.
  const size_t total = call_.fn == Fn::ReduceScatter ? block() * static_cast<size_t>(comm_.nranks) : block();
  mine.is_inline = total <= kInlineBytes ? 1 : 0;
  const auto* send = static_cast<const std::byte*>(call_.send);
  if (mine.is_inline != 0) {
    if (send_bytes() != 0) std::memcpy(mine.data, send, send_bytes());
  } else if (send_bytes() != 0 && !comm_.reachable(send)) {
    state_ = State::stage;
    return Step::progressed;
  }
  mine.send = comm_.locate(send);
  arrive();
  state_ = State::meet;
  return Step::progressed;
}

Step Collective::stage() {
  std::byte* const to = send_staging_.get(send_bytes(), comm_.device);
  if (to == nullptr) {
    warn("the shared heap is full: no room for a copy of %zu bytes of a buffer that is not CUDA memory", send_bytes());
    comm_.async_error.store(ncclSystemError);
    state_ = State::stuck;
    return Step::waiting;
  }
  const size_t piece = std::min(kStepBytes, send_bytes() - done_);
  std::memcpy(to + done_, static_cast<const std::byte*>(call_.send) + done_, piece);
  done_ += piece;
  if (done_ < send_bytes()) return Step::progressed;
  done_ = 0;
  descriptor(comm_.rank).send = comm_.locate(to);
  arrive();
  state_ = State::meet;
  return Step::progressed;
}

// --- everybody is here
// -------------------------------------------------------------------------------------------------------

bool Collective::agreed() const {
  const Descriptor& first = descriptor(0);
  for (int r = 1; r < comm_.nranks; ++r) {
    const Descriptor& other = descriptor(r);
    if (other.fn != first.fn || other.root != first.root || !sizes_agree(other.bytes, first.bytes)) return false;
  }
  return true;
}
bool Collective::all_inline() const {
  for (int r = 0; r < comm_.nranks; ++r)
    if (descriptor(r).is_inline == 0) return false;
  return true;
}

// Other cores wrote them a moment ago: all at once they come in the time of one.
void Collective::fetch_descriptors() const {
  for (int r = 0; r < comm_.nranks; ++r) {
    const Descriptor& theirs = descriptor(r);
    __builtin_prefetch(&theirs);
    __builtin_prefetch(theirs.data);
  }
}
// The one that this rank writes next, which all others have read by now.
void Collective::fetch_next_descriptor() const {
  Descriptor& next = comm_.self().descriptors[(index_ + 1) % 2];
  __builtin_prefetch(&next, 1);
  __builtin_prefetch(next.data, 1);
}

void Collective::settle() {
  fetch_descriptors();
  if (!agreed()) {
    state_ = State::stuck;
    return;
  }
  span_ = block();
  for (int r = 0; r < comm_.nranks; ++r) span_ = std::min<size_t>(span_, descriptor(r).bytes);
  keep_own_tail();
  order_ = order_of(comm_, call_, span_);
  if (all_inline()) {
    small();
    fetch_next_descriptor();
    state_ = State::over;
    return;
  }
  const bool reduces = call_.fn == Fn::AllReduce || call_.fn == Fn::ReduceScatter ||
                       (call_.fn == Fn::Reduce && comm_.rank == call_.root);
  if (call_.fn == Fn::AllReduce) {
    const auto n = static_cast<size_t>(comm_.nranks);
    const size_t each = ((span_ + n - 1) / n + kLine - 1) / kLine * kLine;
    slice_begin_ = std::min(span_, each * static_cast<size_t>(comm_.rank));
    slice_end_ = std::min(span_, slice_begin_ + each);
  } else {
    slice_end_ = span_;
  }
  state_ = reduces ? State::slice : State::gather;
}

// What other ranks do not have is not reduced with anything.
void Collective::keep_own_tail() {
  if (call_.fn == Fn::AllReduce && span_ < block())
    move_bytes(static_cast<std::byte*>(call_.recv) + span_, static_cast<const std::byte*>(call_.send) + span_,
               block() - span_);
}

// Where a peer's input is; `offset` bytes into the block that concerns this rank.
const std::byte* Collective::input(int rank, size_t offset) const {
  const Descriptor& theirs = descriptor(rank);
  const std::byte* at = theirs.is_inline != 0 ? theirs.data : comm_.reach(rank, theirs.send);
  if (at == nullptr) return nullptr;
  const size_t block_at = call_.fn == Fn::ReduceScatter ? theirs.bytes * static_cast<size_t>(comm_.rank) : 0;
  return at + block_at + offset;
}
bool Collective::inputs(size_t offset, std::vector<Input>& out) const {
  out.clear();
  for (int r = 0; r < comm_.nranks; ++r) {
    out.push_back({input(r, offset), descriptor(r).scale});
    if (out.back().data == nullptr) return false;
  }
  return true;
}

void Collective::reduce_into(std::byte* dst, size_t offset, size_t bytes) {
  if (inputs(offset, t_inputs)) reduce_in_order(order_, dst, t_inputs, offset, bytes);
}

void Collective::small() {
  auto* const recv = static_cast<std::byte*>(call_.recv);
  switch (call_.fn) {
    case Fn::AllReduce:
    case Fn::ReduceScatter:
      reduce_into(recv, 0, span_);
      break;
    case Fn::Reduce:
      if (comm_.rank == call_.root) reduce_into(recv, 0, span_);
      break;
    case Fn::Broadcast:
      move_bytes(recv, descriptor(call_.root).data, span_);
      break;
    case Fn::AllGather:
      for (int r = 0; r < comm_.nranks; ++r)
        move_bytes(recv + block() * static_cast<size_t>(r), descriptor(r).data, span_);
      break;
    default:
      break;
  }
}

// --- large
// ---------------------------------------------------------------------------------------------------------------

// Where this rank's part of the result is put: the user's buffer, or a place that peers can read.
std::byte* Collective::result_home() {
  auto* const recv = static_cast<std::byte*>(call_.recv);
  if (call_.fn != Fn::AllReduce || comm_.reachable(recv)) return recv;
  return recv_staging_.get(span_, comm_.device);
}

Step Collective::slice() {
  std::byte* const home = result_home();
  if (home == nullptr) {
    warn("the shared heap is full: no room for a copy of %zu bytes of a buffer that is not CUDA memory", span_);
    comm_.async_error.store(ncclSystemError);
    state_ = State::stuck;
    return Step::waiting;
  }
  const size_t at = slice_begin_ + done_;
  if (at < slice_end_) {
    const size_t piece =
        std::min(kStepBytes / static_cast<size_t>(comm_.nranks) / kLine * kLine + kLine, slice_end_ - at);
    if (!inputs(at, t_inputs)) return Step::waiting;  // a peer has died
    reduce_in_order(order_, home + at, t_inputs, at, piece);
    done_ += piece;
    return Step::progressed;
  }
  done_ = 0;
  if (call_.fn != Fn::AllReduce) return finish_round();
  descriptor(comm_.rank).recv = comm_.locate(home);
  arrive();
  state_ = State::swap;
  return Step::progressed;
}

// All-reduce: fetch the slices that others reduced.
Step Collective::gather() {
  if (peer_ == comm_.nranks) return finish_round();
  const auto n = static_cast<size_t>(comm_.nranks);
  const size_t each = ((span_ + n - 1) / n + kLine - 1) / kLine * kLine;
  const size_t begin = std::min(span_, each * static_cast<size_t>(peer_));
  const size_t end = std::min(span_, begin + each);
  const std::byte* from = begin < end ? comm_.reach(peer_, descriptor(peer_).recv) : nullptr;
  if (begin < end && from == nullptr) return Step::waiting;  // the peer has died
  const size_t piece = std::min(kStepBytes, end - begin - done_);
  if (begin < end) move_bytes(static_cast<std::byte*>(call_.recv) + begin + done_, from + begin + done_, piece);
  done_ += piece;
  if (done_ >= end - begin) {
    done_ = 0;
    ++peer_;
  }
  return Step::progressed;
}

// All-gather: everybody's block; broadcast: the root's.
Step Collective::copy_blocks() {
  const bool gathers = call_.fn == Fn::AllGather;
  if (call_.fn == Fn::Broadcast) peer_ = std::max(peer_, call_.root);
  const int last = call_.fn == Fn::Broadcast ? call_.root + 1 : comm_.nranks;
  if (call_.fn == Fn::Reduce || peer_ >= last) return finish_round();
  const std::byte* from = input(peer_, 0);
  if (from == nullptr) return Step::waiting;  // the peer has died
  std::byte* const to = static_cast<std::byte*>(call_.recv) + (gathers ? block() * static_cast<size_t>(peer_) : 0);
  const size_t piece = std::min(kStepBytes, span_ - done_);
  move_bytes(to + done_, from + done_, piece);
  done_ += piece;
  if (done_ == span_) {
    done_ = 0;
    ++peer_;
  }
  return Step::progressed;
}

Step Collective::finish_round() {
  arrive();
  state_ = State::leave;
  return Step::progressed;
}

}  // namespace lockstep::nccl
