// SPDX-License-Identifier: MIT
//
// The micro-batches of a step in device memory, filled from the text before the step begins.

#pragma once

#include <array>
#include <string>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/core/module.h"
#include "reference/train/run/sampler.h"
#include "reference/train/run/text.h"

namespace train {

struct BatchShape {
  int micro_batches = 1;
  int64_t sequences = 1;        // in each
  std::vector<int64_t> places;  // of a sequence that this rank holds, in this order: all, or its part of the context
  std::vector<std::vector<int64_t>> all_places;  // of every rank of the context's group; empty without one
  int dp_rank = 0, dp_size = 1;
  uint64_t seed = 0;
  double mask_fraction = 0;  // of the targets, drawn by (sequence, place)
};

class Batches {
 public:
  Batches(Memory& memory, const BatchShape& shape);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // The step that begins at the sampler's next sequence. Copies are enqueued; the ones before must be over.
  void load(const Text& text, Sampler& sampler, const Stream& stream);
  // Held-out samples, the first micro-batch being number `first` over all ranks. What is beyond the last one is masked.
  void load_held_out(const Text& text, int64_t first, const Stream& stream);

  // For dumps: the arrays of all micro-batches, and which elements of the global batch [sequences, places] they are, as
  // ranges of it flattened.
  struct Field {
    std::string name;
    std::vector<int32_t> values;
    std::vector<std::array<int64_t, 2>> ranges;
  };
  std::vector<Field> fields(int64_t length) const;
  // Where the rows of micro-batch k on this rank lie among those of the global batch.
  std::vector<int64_t> rows(int k, int64_t length) const;

  const Batch& operator[](int k) const { return batches_[static_cast<size_t>(k)]; }
  int size() const { return shape_.micro_batches; }
  int64_t targets() const { return targets_; }                     // of this rank, all micro-batches
  const std::string& last_sample() const { return last_sample_; }  // "epoch0:sample17", for marks
  int64_t last_number() const { return last_number_; }

 private:
  struct Row {
    int64_t sample, number;
    bool masked;    // wholly
    bool training;  // a fraction of the targets is left out
  };
  void fill_row(const Text& text, int k, int64_t row, const Row& from);
  void copy(const Stream& stream) const;
  bool drops_target(int64_t number, int64_t place) const;

  const BatchShape shape_;
  size_t rows_, all_rows_;  // of a micro-batch: of this rank, and of all that share its sequences
  size_t bytes_;            // of a micro-batch
  char *host_ = nullptr, *device_ = nullptr;
  std::vector<Batch> batches_;
  int64_t targets_ = 0, last_number_ = -1;
  std::string last_sample_;
};

}  // namespace train
