// SPDX-License-Identifier: MIT
//
// See algorithm.h. The setting is read in algorithm_setting.cc.

#include "reference/nccl/algorithm.h"

#include <algorithm>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kBlockBytes = 8192;

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::vector<Input> shifted(const std::vector<Input>& inputs, size_t by) {
  std::vector<Input> out = inputs;
  for (Input& input : out) input.data += by;
  return out;
}

void chain_to(int last, const Order& order, std::byte* dst, std::vector<Input> inputs, size_t count) {
  const int first = (last + 1) % order.nranks;
  std::rotate(inputs.begin(), inputs.begin() + first, inputs.end());
  reduce(order.how, dst, inputs, count);
}

// One block of a tree; `inputs` are in the tree's order, and as many buffers as it is deep are at hand.
class Tree {
 public:
  Tree(const Order& order, const std::vector<Input>& inputs, size_t count)
      : how_(order.how), inputs_(inputs), count_(count) {}

  const std::byte* value(size_t lo, size_t end, size_t depth) {
    if (buffers_.size() <= depth) buffers_.resize(depth + 1);
    if (buffers_[depth].empty()) buffers_[depth].resize(kBlockBytes);
    std::byte* const here = buffers_[depth].data();
    const size_t mid = (lo + end) / 2;
    enter(how_, here, inputs_[mid], count_);
    if (lo < mid) add(here, lo, mid, depth);
    if (mid + 1 < end) add(here, mid + 1, end, depth);
    return here;
  }

 private:
  void add(std::byte* here, size_t lo, size_t end, size_t depth) {
    const std::byte* const other = value(lo, end, depth + 1);
    combine(how_, here, here, other, count_);
  }
  const Reduction how_;
  const std::vector<Input>& inputs_;
  const size_t count_;
  std::vector<std::vector<std::byte>> buffers_;
};

void by_tree(const Order& order, bool mirrored, std::byte* dst, std::vector<Input> inputs, size_t bytes) {
  if (mirrored) std::reverse(inputs.begin(), inputs.end());
  for (size_t at = 0; at < bytes; at += kBlockBytes) {
    const size_t n = std::min(kBlockBytes, bytes - at);
    const size_t count = n / abi::dtype_size(order.how.dtype);
    const std::vector<Input> here = shifted(inputs, at);
    Tree tree(order, here, count);
    std::copy_n(tree.value(0, here.size(), 0), n, dst + at);
  }
  finish(order.how, dst, bytes / abi::dtype_size(order.how.dtype));
}

}  // namespace

Order order_of(const Comm& comm, const Call& call, size_t span) {
  Order order;
  order.how = {call.dtype, call.arithmetic, comm.nranks};
  order.nranks = comm.nranks;
  choose_algorithm(comm, call, order.algorithm);  // cannot fail: the call has been issued
  order.part =
      std::max(kLine, round_up((span + static_cast<size_t>(comm.nranks) - 1) / static_cast<size_t>(comm.nranks)));
  order.half = round_up((span + 1) / 2);
  if (call.fn == abi::Fn::ReduceScatter) order.last = comm.rank;
  if (call.fn == abi::Fn::Reduce) order.last = call.root;
  return order;
}

void reduce_in_order(const Order& order, std::byte* dst, const std::vector<Input>& inputs, size_t at, size_t bytes) {
  const size_t size = abi::dtype_size(order.how.dtype);
  if (order.algorithm == Algorithm::direct) return reduce(order.how, dst, inputs, bytes / size);
  if (order.last >= 0) return chain_to(order.last, order, dst, inputs, bytes / size);
  const bool ring = order.algorithm == Algorithm::ring;
  for (size_t done = 0; done < bytes;) {
    const size_t here = at + done;
    const size_t part = ring ? here / order.part : here / order.half;
    const size_t part_end = ring ? (part + 1) * order.part : (part == 0 ? order.half : at + bytes);
    const size_t n = std::min(bytes - done, part_end - here);
    if (ring)
      chain_to(static_cast<int>(part), order, dst + done, shifted(inputs, done), n / size);
    else
      by_tree(order, part != 0, dst + done, shifted(inputs, done), n);
    done += n;
  }
}

}  // namespace lockstep::nccl
