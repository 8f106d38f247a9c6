// SPDX-License-Identifier: MIT
//
// Which jobs there are, their layouts by name, and how two outcomes are compared.

#include "tests/train/parallel/job.h"
#include "tests/train/parallel/ranks.h"

namespace train {

std::string Layout::name() const {
  const Shape& s = shape;
  std::string text = "dp" + std::to_string(s.dp) + " pp" + std::to_string(s.pp) + " cp" + std::to_string(s.cp) + " tp" +
                     std::to_string(s.tp) + " m" + std::to_string(micro_batches);
  if (s.pp > 1) text += " " + schedule + " v" + std::to_string(chunks);
  if (sequence) text += " sp";
  if (s.cp > 1) text += context == ContextWay::ring ? " ring" : context == ContextWay::ulysses ? " ulysses" : " gather";
  if (s.ep > 1) text += " ep" + std::to_string(s.ep);
  return text + " " + shard;
}

Config small_config() {
  Config config;
  config.layers = 4;
  config.heads = 4;
  config.width = 16;
  config.vocab = 29;
  config.seq = kLength;
  config.dtype = Dtype::f64;
  config.dropout = 0.1;
  config.vocab_multiple = 8;
  return config;
}

Difference compare(const Outcome& a, const Outcome& b) {
  Difference worst;
  const auto note = [&](double distance, const std::string& where) {
    if (!(distance <= worst.distance)) worst = {distance, where};
  };
  if (a.gradients.size() != b.gradients.size() || a.parameters.size() != b.parameters.size())
    return {1, "the number of tensors"};
  note(distance(a.losses, b.losses), "loss");
  note(distance(a.norms, b.norms), "norm");
  for (const auto& [name, values] : a.gradients)
    note(b.gradients.count(name) ? distance(values, b.gradients.at(name)) : 1, "grad/" + name);
  for (const auto& [name, values] : a.parameters)
    note(b.parameters.count(name) ? distance(values, b.parameters.at(name)) : 1, "param/" + name);
  return worst;
}

const Outcome& one_rank(const std::string& kind, const Job& job) {
  static std::map<std::string, Outcome> known;
  if (!known.count(kind)) {
    Layout layout;
    layout.micro_batches = 4;
    known[kind] = run_job(job, layout);
  }
  return known[kind];
}

void expect_equal(const std::string& kind, const Job& job, const Layout& layout) {
  const Outcome& truth = one_rank(kind, job);
  EXPECT_GT(truth.losses.at(0), 100);
  const Difference difference = compare(run_job(job, layout), truth);
  EXPECT_LT(difference.distance, 1e-12) << layout.name() << " differs at " << difference.where;
}

Layout layout_of(int dp, int pp, int cp, int tp) {
  Layout layout;
  layout.shape.dp = dp;
  layout.shape.pp = pp;
  layout.shape.cp = cp;
  layout.shape.tp = tp;
  return layout;
}

static Job job_of(void (*change)(Config&)) {
  Job job;
  job.config = small_config();
  change(job.config);
  return job;
}
const Job kTied = job_of([](Config&) {});
const Job kExperts = job_of([](Config& c) {
  c.experts = 4;
  c.layers = 2;
});
const Job kCapacity = job_of([](Config& c) {
  c.experts = 4;
  c.layers = 2;
  c.capacity = 0.75;
  c.aux_loss = 0.1;
});
const Job kRotary = job_of([](Config& c) {
  c.tied = false;
  c.positions = Positions::rotary;
  c.kv_heads = 2;
});

}  // namespace train
