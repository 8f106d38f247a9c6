// SPDX-License-Identifier: MIT
//
// Activations that a rank keeps, by the account of the arenas they lie in, against the formulas of docs/trainer.md:
// what tensor, sequence, context, pipeline and expert parallelism save, and what not. To the byte, of the rank that has
// most.

#include "reference/train/model/config.h"
#include "reference/train/parallel/pipeline_plan.h"
#include "reference/train/run/memory_needed.h"
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

// The gradients that a split backward pass leaves for its second half, without tensor parallelism.
Kept kept_by_halves(const Config& c) {
  const auto width = static_cast<double>(c.width), hidden = static_cast<double>(c.hidden());
  const double attention = 7 * width + static_cast<double>(c.heads), mlp = 3 * width + 2 * hidden;
  return {width, attention + mlp, 2 * width};
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

// As many chunks as are in flight; a place for one has room for the largest that the plan ever puts there: the model's
// ends are larger than what is between them.
double kept_in_places(const Layout& l, int rank, const Kept& k, double layers) {
  const PipelinePlan plan = plan_stage(make_schedule(l.schedule, l.shape.pp, l.micro_batches, l.chunks), rank);
  EXPECT_EQ(plan.slots,
            std::min(l.micro_batches * l.chunks, 2 * (l.shape.pp - 1 - rank) + (l.chunks - 1) * l.shape.pp + 1));
  std::vector<double> most(static_cast<size_t>(plan.slots));
  for (const PipelineStep& step : plan.steps) {
    const bool first = rank == 0 && step.action.chunk == 0,
               last = rank == l.shape.pp - 1 && step.action.chunk == l.chunks - 1;
    double& place = most[static_cast<size_t>(step.slot)];
    place = std::max(place, layers * k.layer + (first ? k.embedding : 0) + (last ? k.head : 0));
  }
  return std::accumulate(most.begin(), most.end(), 0.0);
}

TEST(KeptActivations, InterleavedKeepsChunksInFlight) {
  Job job = small_job();
  job.config.layers = 8;
  const Kept k = kept(job.config, 1, 1);
  for (const auto& [p, v] : {std::pair(2, 2), std::pair(2, 4), std::pair(4, 2)})
    for (const int m : {4, 8}) {
      Layout layout = layout_of(1, p, 1, 1);
      layout.schedule = "interleaved";
      layout.chunks = v;
      layout.micro_batches = m;
      double most = 0;
      for (int rank = 0; rank < p; ++rank) most = std::max(most, kept_in_places(layout, rank, k, 8.0 / (p * v)));
      EXPECT_EQ(bytes(job, layout), 8 * tokens(layout) * most) << layout.name();
    }
}

// As many micro-batches on every rank, and with each what its second half needs.
TEST(KeptActivations, ZeroBubbleKeepsGradientsUntilTheSecondHalf) {
  const Job job = small_job();
  const Kept k = kept(job.config, 1, 1), g = kept_by_halves(job.config);
  for (const int p : {2, 4})
    for (const bool second : {false, true}) {
      Layout layout = layout_of(1, p, 1, 1);
      layout.schedule = second ? "zero-bubble-2" : "zero-bubble";
      layout.micro_batches = 8;
      const double layers = 4.0 / p * (k.layer + g.layer), ends = std::max(k.embedding + g.embedding, k.head + g.head);
      EXPECT_EQ(bytes(job, layout), 8 * tokens(layout) * (second ? 2 * p - 1 : p) * (layers + ends)) << layout.name();
    }
}

// Every token goes to every expert, so that a rank's rows are known: those of its experts from all ranks of the group.
TEST(KeptActivations, ExpertsKeepTheRowsThatArrive) {
  Job job = kExperts;
  job.steps = 1;
  job.config.top_k = job.config.experts;
  const Config& c = job.config;
  const auto width = static_cast<double>(c.width), heads = static_cast<double>(c.heads),
             experts = static_cast<double>(c.experts), top_k = static_cast<double>(c.top_k);
  for (const auto& [dp, ep] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, 2), std::pair(4, 2), std::pair(4, 4)}) {
    Layout layout = layout_of(dp, 1, 1, 1);
    layout.shape.ep = ep;
    const double rows = tokens(layout) * ep * top_k / ep, attention = 6 * width + 2 + heads;
    const double router = 2 * width + 2 + 2 * experts + top_k + 3 * top_k / 2 + top_k * width;
    const double loads = std::ceil(tokens(layout) / kLength * experts * 4 / 64) * 64;  // in pieces of 64 bytes
    const Kept k = kept(c, 1, 1);
    EXPECT_EQ(bytes(job, layout), 8 * (tokens(layout) * (k.embedding + k.head + 2 * (attention + router)) +
                                       2 * rows * (width + 2 * static_cast<double>(c.hidden()))) +
                                      2 * loads)
        << layout.name();
  }
}

// What the program takes for the least that a micro-batch needs, before it begins, is what the arenas then have.
double foreseen(const Job& job, const Layout& layout) {
  const Config& c = job.config;
  Options o;
  o.shape = layout.shape;
  o.sequence_parallel = layout.sequence;
  o.cp_algo = layout.context == ContextWay::ulysses ? "ulysses" : "ring";
  o.layers = static_cast<int>(c.layers);
  o.heads = static_cast<int>(c.heads);
  o.kv_heads = static_cast<int>(c.key_value_heads());
  o.width = c.width;
  o.vocab = c.vocab;
  o.vocab_multiple = c.vocab_multiple;
  o.seq = c.seq;
  o.dtype = c.dtype;
  o.experts = static_cast<int>(c.experts);
  o.top_k = static_cast<int>(c.top_k);
  o.capacity = c.capacity;
  o.accum = layout.micro_batches;
  o.micro_batch = kSequences / layout.shape.dp / layout.micro_batches;
  return least_memory(o, true).activations;
}

TEST(KeptActivations, AreThoseThatTheProgramForesees) {
  std::vector<std::pair<Job, Layout>> cases;
  for (Job job : {kTied, kRotary, kExperts, kCapacity}) {
    job.steps = 1;
    job.config.top_k = std::max<int64_t>(job.config.experts, 1);  // so that it is known how many rows arrive
    const bool experts = job.config.experts > 0;
    Layout layout = layout_of(experts ? 2 : 1, 1, 1, 1);
    layout.shape.ep = layout.shape.dp;
    cases.emplace_back(job, layout);
    layout = layout_of(1, 1, 1, 2);
    layout.sequence = experts;
    layout.shape.ep = experts ? 2 : 1;
    cases.emplace_back(job, layout);
    layout = layout_of(1, 1, 2, 1);
    layout.context = ContextWay::ulysses;
    cases.emplace_back(job, layout);
  }
  for (const auto& [job, layout] : cases) {
    const double kept = bytes(job, layout);
    EXPECT_NEAR(foreseen(job, layout), kept, 0.02 * kept) << layout.name() << " experts " << job.config.experts;
  }
}

}  // namespace
}  // namespace train
