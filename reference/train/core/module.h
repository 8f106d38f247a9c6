// SPDX-License-Identifier: MIT
//
// What a model is made of: modules that run one after another on activations [rows, width], rows being the tokens of
// one micro-batch on this rank. A pipeline stage is a range of modules, a FSDP unit a set of them.
//
// The backward pass is in two halves (Qi et al. 2024, 2401.10241, section 2): the first gives the gradient of the
// input, for which the previous module waits, the second those of the weights, for which nobody waits. Run one right
// after the other they are the usual backward pass; a zero-bubble schedule moves the second.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/parameter.h"

namespace train {

// The tokens of one micro-batch as this rank sees them. Rows are sequences one after another, each of `length` local
// positions (under context parallelism a part of the sequence). All arrays have rows() elements and are device memory.
struct Batch {
  int64_t sequences = 0, length = 0;
  int64_t rows() const { return sequences * length; }
  const int32_t* tokens = nullptr;     // [rows] input bytes
  const int32_t* targets = nullptr;    // [rows] the next token; -1: masked, no loss
  const int32_t* positions = nullptr;  // [rows] position inside the document: learned and rotary positions
  const int32_t* documents = nullptr;  // [rows] packed documents of a sequence do not see each other
  const int32_t* order = nullptr;      // [rows] position inside the whole sequence: causality, random numbers
  const int64_t* samples = nullptr;    // [rows] running number of the sequence since training began: random numbers
  // Under context parallelism the two above of all ranks of the group: [ranks, rows]. Else null.
  const int32_t *all_documents = nullptr, *all_order = nullptr;
  bool training = true;  // dropout on
};

// How attention gets to see a sequence that is split over ranks (parallel/context.h).
enum class ContextWay { ring, all_gather, ulysses };

class Exchange;  // parallel/exchange.h

// What parallel modes a module's own computation takes part in. Groups of one are the usual case and cost nothing.
struct Groups {
  Comm tp;                // heads, columns and rows of matrices, vocabulary
  bool sequence = false;  // sequence parallelism (2205.05198): between tensor-parallel regions rows are split over tp
  Comm kv;                // the part of tp that shares key/value heads, where there are fewer heads than ranks
  Comm cp;                // sequences are split over cp
  ContextWay context = ContextWay::ring;
  Comm ep;                       // experts
  Exchange* exchange = nullptr;  // communication beside computation; needed where tp or cp has several ranks
};

class Arena;

class Module {
 public:
  virtual ~Module() = default;
  const std::string& name() const { return name_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // Enqueues on the compute stream and returns the output, which lies in `arena`. `slot` numbers the micro-batches in
  // flight: what is saved is kept there until backward_weight of the same slot.
  virtual View forward(int slot, const Batch& batch, View input, Arena& arena) = 0;
  // `output_grad` is the gradient of the sum of losses (not of a mean), times the loss scale.
  virtual View backward_input(int slot, const Batch& batch, View output_grad, Arena& arena) = 0;
  virtual void backward_weight(int slot, const Batch& batch) = 0;
  // Both halves. A module may put work of the second where the first waits for other ranks: the bits are the same.
  virtual View backward(int slot, const Batch& batch, View output_grad, Arena& arena) {
    const View input_grad = backward_input(slot, batch, output_grad, arena);
    backward_weight(slot, batch);
    return input_grad;
  }

 protected:
  std::string name_;
  std::vector<Parameter*> parameters_;
};

}  // namespace train
