// SPDX-License-Identifier: MIT
//
// Activations that a rank keeps, by the account of the arenas they lie in, against the formulas of docs/trainer.md:
// what tensor, sequence, context and pipeline parallelism save, and what not. To the byte, of the rank that has most.

#include "reference/train/model/config.h"
#include "tests/train/parallel/job.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

[[maybe_unused]] const bool kDevices = [] {
  set_devices(8);
  return true;
}();

Job small_job() {
  Job job = kTied;
  job.steps = 1;
  return job;
}

// Numbers of 8 bytes for one token of the sequence.
struct Kept {
  double embedding, layer, head;
};
// t: tensor-parallel ranks; outer: the part of the rows between regions that a rank has.
Kept kept(const Config& c, int t, double outer) {
  const auto width = static_cast<double>(c.width), heads = static_cast<double>(c.heads);
  const double attention = outer * (2 * width + 2) + (4 * width + heads) / t;
  const double mlp = outer * (2 * width + 2) + 2 * static_cast<double>(c.hidden()) / t;
  return {outer * width, attention + mlp, outer * (width + 2) + static_cast<double>(padded_vocab(c, t)) / t + 3};
}

double bytes(const Job& job, const Layout& layout) {
  return static_cast<double>(run_job(job, layout).activation_bytes);
}

// Tokens of a micro-batch on a rank.
double tokens(const Layout& l) {
  return static_cast<double>(kSequences * kLength / l.shape.dp / l.micro_batches / l.shape.cp);
}

TEST(KeptActivations, TensorParallelSavesInsideRegionsAndSequenceParallelOutside) {
  const Job job = small_job();
  for (const int t : {1, 2, 4})
    for (const bool sequence : {false, true}) {
      Layout layout = layout_of(1, 1, 1, t);
      layout.sequence = sequence && t > 1;
      const Kept k = kept(job.config, t, layout.sequence ? 1.0 / t : 1);
      EXPECT_EQ(bytes(job, layout), 8 * tokens(layout) * (k.embedding + 4 * k.layer + k.head)) << layout.name();
    }
}

TEST(KeptActivations, ContextParallelDividesAllAndUlyssesKeepsWhatItGathered) {
  const Job job = small_job();
  const Kept k = kept(job.config, 1, 1);
  for (const int c : {2, 4})
    for (const ContextWay way : {ContextWay::ring, ContextWay::all_gather, ContextWay::ulysses}) {
      Layout layout = layout_of(1, 1, c, 1);
      layout.context = way;
      const double gathered = way == ContextWay::ulysses ? 4 * 4 * static_cast<double>(job.config.width) : 0;
      EXPECT_EQ(bytes(job, layout), 8 * tokens(layout) * (k.embedding + 4 * k.layer + k.head + gathered))
          << layout.name();
    }
}

// The first stage has most: all schedules but GPipe keep as many micro-batches there as there are stages.
TEST(KeptActivations, PipelineKeepsWhatIsInFlight) {
  const Job job = small_job();
  const Kept k = kept(job.config, 1, 1);
  const auto most = [&](const Layout& l, double first, double last) {
    const double layers = 4.0 / l.shape.pp;
    return 8 * tokens(l) * std::max(first * (k.embedding + layers * k.layer), last * (layers * k.layer + k.head));
  };
  for (const int p : {2, 4})
    for (const int m : {4, 8}) {
      Layout layout = layout_of(1, p, 1, 1);
      layout.micro_batches = m;
      layout.schedule = "gpipe";
      EXPECT_EQ(bytes(job, layout), most(layout, m, m)) << layout.name();
      layout.schedule = "1f1b";
      EXPECT_EQ(bytes(job, layout), most(layout, p, 1)) << layout.name();
    }
}

}  // namespace
}  // namespace train
