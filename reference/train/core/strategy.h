// SPDX-License-Identifier: MIT
//
// How parameters, gradients and optimizer state are spread over the data-parallel ranks: plain data parallelism
// (data.cc), ZeRO 1 to 3 (zero.cc) and FSDP (fsdp.cc) are three answers to one set of questions, and the training loop
// and the pipeline runtime know only these.
//
// A module (module.h) is what runs; a unit is a set of modules whose parameters are gathered and whose gradients are
// reduced together (a wrap policy makes units of modules). In one step:
//
//   begin_step                                   tokens counted, gradients of the last step forgotten
//     per micro-batch                            begin_micro_batch(k)
//       forward, modules in order                before_forward(m)  compute  after_forward(m)
//       backward, modules in reverse             before_backward(m) compute  after_backward(m)
//   finish_gradients                             every gradient is the global sum, wherever its owner keeps it
//   [division by the global token count, norm, clipping, optimizer on owned()]
//   finish_update                                the next forward pass sees the new values
//
// A pipeline interleaves forward and backward of several micro-batches, and a split backward pass calls after_backward
// when the weight gradients are there; `k` is always told. Gradients of micro-batches are added in the order of k. A
// module whose parameters are used by two modules (tied embeddings, a layer used twice) is ready only after the last
// use.

#pragma once

#include <memory>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/parameter.h"

namespace train {

// A contiguous piece of a parameter that this rank updates.
struct Owned {
  Parameter* parameter;
  int64_t begin, count;  // elements of the parameter's local part, row-major
  View value;            // compute dtype
  View master;           // wide(dtype); the same memory as value unless the compute dtype is bf16
  View grad;             // wide(dtype); after finish_gradients the global sum, not yet divided
  View first, second;    // optimizer moments, wide(dtype); second is empty for SGD
  bool counts = true;    // in norms and dumps; else another rank of owners() has the same piece and does
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // What a strategy has nothing to do at it leaves out.
  virtual void begin_step(int /*micro_batches*/) {}
  virtual void begin_micro_batch(int /*k*/) {}
  virtual void before_forward(int /*module*/, int /*k*/) {}
  virtual void after_forward(int /*module*/, int /*k*/) {}
  virtual void before_backward(int /*module*/, int /*k*/) {}
  virtual void after_backward(int module, int k) = 0;
  virtual void finish_gradients() = 0;
  virtual void finish_update() {}

  // What this rank updates; the same list in every step. Ranks of `owners()` together own every element exactly once.
  virtual std::vector<Owned>& owned() = 0;
  // The group over which owned() is a partition (size 1: every rank owns all, as in plain data parallelism).
  virtual const Comm& owners() const = 0;
  // Whole parameters of this rank's part of the model, for dumps, evaluation and checkpoints: gathered until the next
  // call.
  virtual void gather_all() {}
  virtual void release_all() {}
};

}  // namespace train
