// SPDX-License-Identifier: MIT
//
// Is the backward pass the derivative of the forward pass? For every parameter the change of the loss along a random
// direction, by five-point differences in fp64, against the gradient's. Every element has a part in both; dropout is
// the same in every evaluation, for it is a function of (seed, place).

#include <algorithm>
#include <cmath>

#include "tests/train/model/harness.h"

namespace train::test {
namespace {

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class Gradients : public testing::TestWithParam<Experiment> {
 protected:
  Rig rig{GetParam()};
  std::mt19937_64 random{3};

  Values direction(const Parameter& p) {
    std::normal_distribution<double> normal;
    Values d(static_cast<size_t>(p.count), 0.0);
    for (int64_t i = 0; i < Rig::real_elements(p); ++i) d[static_cast<size_t>(i)] = normal(random);
    const double length = std::sqrt(dot(d, d));
    for (double& x : d) x /= length;
    return d;
  }

  // d loss / d h at h = 0 for value + h * direction; the error is of order h^4.
  double slope(const Parameter& p, const Values& along) {
    const Values value = rig.get(p.value);
    const auto loss = [&](double h) {
      Values moved = value;
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += h * along[i];
      rig.put(p.value, moved);
      return rig.step();
    };
    const double h = 2e-3;
    const double result = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
    rig.put(p.value, value);
    return result;
  }
};

TEST_P(Gradients, AreTheLossesSlope) {
  rig.step();
  std::map<const Parameter*, Values> gradients;
  for (Parameter* p : rig.model().parameters())
    if (!p->frozen) gradients[p] = rig.gradient(*p);
  ASSERT_FALSE(gradients.empty());
  for (const auto& [p, gradient] : gradients) {
    const Values along = direction(*p);
    const double size = std::sqrt(dot(gradient, gradient));
    EXPECT_NEAR(slope(*p, along), dot(gradient, along), 1e-7 * size + 1e-8) << p->name;
    EXPECT_GT(size, 1e-6) << p->name;
  }
}

// One element of the wrong sign, and the difference is beyond what the check allows.
TEST_P(Gradients, OneWrongElementIsSeen) {
  rig.step();
  const Parameter* p = nullptr;
  for (const Parameter* candidate : rig.model().parameters())
    if (!candidate->frozen) p = candidate;
  Values gradient = rig.gradient(*p);
  const Values along = direction(*p);
  const auto largest = std::max_element(gradient.begin(), gradient.end());
  *largest = -*largest;
  const double size = std::sqrt(dot(gradient, gradient));
  EXPECT_GT(std::abs(slope(*p, along) - dot(gradient, along)), 1e3 * (1e-7 * size + 1e-8)) << p->name;
}

void learned(Experiment&) {}
void rotary_grouped_untied(Experiment& s) {
  s.config.positions = Positions::rotary;
  s.config.kv_heads = 2;
  s.config.tied = false;
}
void dropout_masks(Experiment& s) {
  s.config.dropout = 0.2;
  s.masked = true;
  s.micro_batches = 3;
}
void packed_rotary(Experiment& s) {
  s.config.positions = Positions::rotary;
  s.packed = s.masked = true;
}
void packed_learned_one_key_head(Experiment& s) {
  s.config.kv_heads = 1;
  s.packed = true;
  s.sequences = 3;
}
void shared_layers(Experiment& s) {
  s.config.layers = 3;
  s.config.share_layers = true;
  s.config.dropout = 0.1;
}
void frozen(Experiment& s) {
  s.config.freeze = {"*.wte.weight", "*.h.0.*", "*ln_f.bias", "*.c_proj.weight"};
  s.micro_batches = 2;
}
void padded(Experiment& s) { s.config.vocab_multiple = 8; }
void padded_untied_shared_accumulated(Experiment& s) {
  s.config.vocab_multiple = 8;
  s.config.tied = false;
  s.config.share_layers = true;
  s.micro_batches = 2;
  s.masked = true;
  s.loss_scale = 1;
}

// Every expert is chosen by every token, for a choice has no slope.
void experts(Experiment& s) {
  s.config.experts = s.config.top_k = 3;
  s.config.aux_loss = 0;  // not part of the loss that is told
  s.config.dropout = 0.1;
  s.micro_batches = 2;
}
INSTANTIATE_TEST_SUITE_P(All, Gradients,
                         testing::Values(small("learned", learned),
                                         small("rotary_grouped_untied", rotary_grouped_untied),
                                         small("dropout_masks", dropout_masks), small("packed_rotary", packed_rotary),
                                         small("packed_learned_one_key_head", packed_learned_one_key_head),
                                         small("shared_layers", shared_layers), small("frozen", frozen),
                                         small("padded", padded), small("experts", experts),
                                         small("padded_untied_shared_accumulated", padded_untied_shared_accumulated)),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace train::test
