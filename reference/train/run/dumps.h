// SPDX-License-Identifier: MIT
//
// --dump: what a rank owns, written to a dump folder (docs/dump-format.md) so that layouts can be compared. Step 0 has
// the first parameters; step n has the gradients of step n after reduction and division, before clipping, the
// parameters (in bf16 runs as bf16, and the master weights) and moments after its update, and its batch. Only owners
// write: of ranks that hold the same elements, the first. Every rank's file also says where the training stands
// (state.h), so that a dump holds what a restart needs.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/train/core/strategy.h"
#include "reference/train/run/activations.h"
#include "reference/train/run/batches.h"
#include "reference/train/run/communicators.h"
#include "reference/train/run/options.h"
#include "reference/train/run/state.h"
#include "verify/dump/writer.h"

namespace train {

// Makes the folder. Throws Refusal where that fails, and for one that holds a dump already: a mixture of two trainings
// would be compared as if it were one. Every rank may ask, since none writes before all have met.
void check_dump_folder(const std::string& path);

// The ranges of the whole flattened tensor that elements [begin, begin + count) of a rank's part are, and the ranges of
// those elements themselves, counted from `begin`: vocabulary padding is in neither.
struct FlatRanges {
  std::vector<lockstep::dump::Range> global, local;
};
FlatRanges ranges_of(const Parameter& parameter, int64_t begin, int64_t count);

class Dumps {
 public:
  // Inactive without --dump.
  Dumps(const Options& options, const Communicators& comms, const Place& place, int rank, const Stream& compute);

  bool wants(int64_t step) const;
  void begin_step(int64_t step);
  Watcher* watcher();  // of the forward passes of a step that is dumped; null without --dump-act
  void gradients(Strategy& strategy);
  void parameters(Strategy& strategy, const std::vector<Parameter*>& all);
  void batch(const Batches& batches);  // and the activations made of it
  void end_step(const lockstep::dump::Metrics& metrics, const TrainingState& state);

 private:
  void write(const std::string& name, const Owned& piece, View view);
  bool owns(const Strategy& strategy) const;

  const Options& options_;
  const Communicators& comms_;
  const Place place_;
  const Stream& compute_;
  std::optional<lockstep::dump::Writer> writer_;
  Activations activations_;
};

}  // namespace train
