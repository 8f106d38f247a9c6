// SPDX-License-Identifier: MIT
//
// A rank's side of a dump folder (docs/dump-format.md). One Writer a rank; ranks may be processes or threads of one
// process, and need not know of each other. Tensors go to the disk as they are handed in, so that a dump costs no
// memory but for tensors whose bytes are not a multiple of 8: these wait for the end of the step, so that all are
// aligned.
//
//   Writer writer(folder, rank, world_size);
//   writer.begin_step(step);
//   writer.tensor("grad/transformer.wte.weight", Dtype::f32, data, {V / tp, C}, {.global = {V, C}, .slice = {{lo, hi},
//   {0, C}}}); writer.metrics({.step = step, .rank = rank, .loss = loss}); writer.end_step();
//
// A file gets its name when its step is complete. What goes wrong is thrown as std::runtime_error with one sentence: a
// training that was asked for a dump and cannot write it should end.

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/dump/dtype.h"
#include "verify/dump/metrics.h"
#include "verify/dump/placement.h"

namespace lockstep::dump {

inline constexpr int kFormatVersion = 1;

class Writer {
 public:
  // `computed_in`: the type of the activations, where it is coarser than that of what is dumped (bf16 with fp32
  // gradients and master weights): the noise in these is that type's.
  Writer(std::filesystem::path folder, int rank, int world_size, std::optional<Dtype> computed_in = {});
  ~Writer();  // a step that was not ended leaves nothing behind
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void begin_step(int64_t step);
  // The bytes are written or copied before this returns.
  void tensor(std::string name, Dtype dtype, const void* data, std::vector<int64_t> local_shape, Placement placement);
  // A text of the writer's own for the metadata of the step's file, under a key that the format does not know.
  void note(const std::string& key, std::string text);
  void metrics(const Metrics& metrics);  // inside a step or outside of one
  void end_step();

 private:
  struct Step;
  std::filesystem::path folder_;
  int rank_;
  int world_size_;
  std::optional<Dtype> computed_in_;
  uint64_t header_room_ = 4096;  // what the last step's header took, at first a guess
  std::unique_ptr<Step> step_;
};

}  // namespace lockstep::dump
