// SPDX-License-Identifier: MIT
//
// --dump-act: the activations of a step (model/watch.h) on their way to its dump. They are copied to the host in stream
// order while the step runs, so that nothing waits for them, and written when it is over. In the dump each is one
// tensor [global batch, positions, columns], act/NAME; where a rank's rows and columns lie in it follows from its
// micro-batches (dp), its places of the sequences (cp), its rows of them (sequence parallelism) and its columns (tp).

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/model/watch.h"
#include "reference/train/run/batches.h"
#include "reference/train/run/options.h"
#include "verify/dump/writer.h"

namespace train {

lockstep::dump::Dtype dump_type(Dtype dtype);

// Throws Refusal for a pattern that fits no activation of the model, and for patterns without a dump.
void check_activation_patterns(const Options& options, const Config& config);

// Where columns `columns` of rows `rows` lie in a tensor [sequences, length, width]. Rows are counted through all
// sequences, ascending. A slice where rows and columns make one, else flat ranges. What is beyond `width` is left out.
lockstep::dump::Placement place_rows(const std::vector<int64_t>& global, const std::vector<int64_t>& rows,
                                     const std::vector<std::array<int64_t, 2>>& columns,
                                     lockstep::dump::Placement::Kind kind);

class Activations : public Watcher {
 public:
  Activations(const Options& options, const Stream& compute) : options_(options), compute_(compute) {}
  ~Activations() override;
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  bool wants(const std::string& name) const override;
  void see(int micro_batch, const Activation& activation) override;
  // What was seen since the last call. The compute stream must be done.
  void write(lockstep::dump::Writer& writer, const Batches& batches);

 private:
  struct Point {
    Activation seen;
    std::vector<void*> host;  // by micro-batch, page-locked: kept for the next dump
    int count = 0;            // of micro-batches in this step
  };
  void write(lockstep::dump::Writer& writer, const Batches& batches, const Point& point) const;

  const Options& options_;
  const Stream& compute_;
  std::map<std::string, Point> points_;
};

}  // namespace train
