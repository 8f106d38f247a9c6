// SPDX-License-Identifier: MIT
//
// Ring attention (Liu et al. 2023, 2310.01889) and the all-gather variant: two ways for keys and values to get to the
// queries, block by block or all at once.

#include "reference/train/parallel/context_blocks.h"

namespace train {
namespace {

// Everybody hands a block to the next rank. Both directions in one group: nobody waits for a turn.
void pass_on(const Comm& cp, const Stream& stream, View from, View to) {
  const Group group;
  cp.send(from, (cp.rank() + 1) % cp.size(), stream);
  cp.receive(to, (cp.rank() + cp.size() - 1) % cp.size(), stream);
}

}  // namespace

// c - 1 exchanges of keys and values, each beside the attention to the block that is here.
void ring_forward(const ContextAttention& call, View out, View lse, View q, View k, View v) {
  const Comm& cp = call.groups.cp;
  Arena& workspace = call.exchange.workspace();
  View here = workspace.take(q.dtype, block_elements(call.shape)), next = workspace.take(q.dtype, here.size);
  pack(call, here, k, v);
  for (int step = 0; step < cp.size(); ++step) {
    const int owner = (cp.rank() - step + cp.size()) % cp.size();
    const bool more = step + 1 < cp.size();
    if (more) call.exchange.begin(call.stream, [&](const Stream& stream) { pass_on(cp, stream, here, next); });
    attend_block(call, out, lse, q, here, owner, step > 0);
    if (more) call.exchange.join(call.stream);
    std::swap(here, next);
  }
}

// c - 1 exchanges of keys and values and c of their gradients: a block's gradient is summed along the ranks that its
// keys and values visit, in that order, and the last exchange brings it home. The sum is wide, as that of q_grad is: in
// bf16 every stop would round it again.
void ring_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View q, View k,
                   View v, View lse, View delta) {
  const Comm& cp = call.groups.cp;
  Arena& workspace = call.exchange.workspace();
  const int64_t size = block_elements(call.shape);
  View here = workspace.take(q.dtype, size), next = workspace.take(q.dtype, size);
  const View mine = workspace.take(wide(q.dtype), size);  // of this rank's queries
  View sum = workspace.take(wide(q.dtype), size), arriving = workspace.take(wide(q.dtype), size);
  pack(call, here, k, v);
  for (int step = 0; step < cp.size(); ++step) {
    const int owner = (cp.rank() - step + cp.size()) % cp.size();
    if (step + 1 < cp.size())
      call.exchange.begin(call.stream, [&](const Stream& stream) { pass_on(cp, stream, here, next); });
    attend_block_backward(call, {q_grad, step > 0}, mine, out_grad, q, here, lse, delta, owner);
    call.exchange.join(call.stream);
    std::swap(sum, arriving);
    if (step == 0)
      convert(call.stream.get(), sum, mine);
    else
      add_to(call.stream.get(), sum, mine, 1);
    call.exchange.begin(call.stream, [&](const Stream& stream) { pass_on(cp, stream, sum, arriving); });
    std::swap(here, next);
  }
  call.exchange.join(call.stream);
  convert(call.stream.get(), here, arriving);
  unpack(call, k_grad, v_grad, here);
}

// The blocks of all ranks, one after another.
static View gather_blocks(const ContextAttention& call, View k, View v) {
  Arena& workspace = call.exchange.workspace();
  const View own = workspace.take(k.dtype, block_elements(call.shape));
  const View all = workspace.take(k.dtype, own.size * call.groups.cp.size());
  pack(call, own, k, v);
  call.groups.cp.all_gather(own, all, call.stream);
  return all;
}

void gather_forward(const ContextAttention& call, View out, View lse, View q, View k, View v) {
  const View all = gather_blocks(call, k, v);
  const int64_t size = block_elements(call.shape);
  for (int owner = 0; owner < call.groups.cp.size(); ++owner)
    attend_block(call, out, lse, q, all.part(owner * size, size), owner, owner > 0);
}

void gather_backward(const ContextAttention& call, View q_grad, View k_grad, View v_grad, View out_grad, View q, View k,
                     View v, View lse, View delta) {
  Arena& workspace = call.exchange.workspace();
  const int64_t size = block_elements(call.shape);
  const View all = gather_blocks(call, k, v), home = workspace.take(q.dtype, size);
  const View all_grad = workspace.take(wide(q.dtype), all.size), own = workspace.take(wide(q.dtype), size);
  // The own block first: it is the one that every query has a part in, so that q_grad is whole once it is written.
  for (int step = 0; step < call.groups.cp.size(); ++step) {
    const int owner = (call.groups.cp.rank() + step) % call.groups.cp.size();
    attend_block_backward(call, {q_grad, step > 0}, all_grad.part(owner * size, size), out_grad, q,
                          all.part(owner * size, size), lse, delta, owner);
  }
  call.groups.cp.reduce_scatter(all_grad, own, ncclSum, call.stream);
  convert(call.stream.get(), home, own);
  unpack(call, k_grad, v_grad, home);
}

}  // namespace train
