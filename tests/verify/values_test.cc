// SPDX-License-Identifier: MIT

#include "verify/compare/values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "tests/verify/made_dumps.h"
#include "verify/assemble/assemble.h"
#include "verify/compare/control.h"
#include "verify/compare/order.h"

namespace lockstep::verify {
namespace {

using namespace lockstep::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Pair {
  MadeShards left, right;
  GlobalTensor a, b;
  Tolerance tolerance;
};

// Two whole tensors.
std::unique_ptr<Pair> pair_of(const MadeTensor& a, const MadeTensor& b) {
  auto out = std::make_unique<Pair>();
  out->a = assemble("t", out->left.add(0, a, whole(a)).shards).tensor;
  out->b = assemble("t", out->right.add(0, b, whole(b)).shards).tensor;
  out->tolerance = tolerance_of(coarser(a.dtype, b.dtype));
  return out;
}

Values values_of(const Pair& pair) { return compare_values(pair.a, pair.b, pair.tolerance); }
Values values_of(const MadeTensor& a, const MadeTensor& b) { return values_of(*pair_of(a, b)); }

TEST(Values, TheSameBits) {
  const MadeTensor t = made("t", {100, 100});
  const Values values = values_of(t, t);
  EXPECT_EQ(values.outcome, Outcome::bitwise);
  EXPECT_EQ(values.nan_a, 0);
}

TEST(Values, NoiseIsWithinAndAMistakeIsNot) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const MadeTensor t = made("t", {50, 200}, dtype);
    const double rtol = tolerance_of(dtype).rtol;
    MadeTensor noisy = t, wrong = t;
    for (double& value : wrong.values) value *= 1 + 4 * rtol;
    uint8_t bytes[8];
    dump::from_double(dtype, t.values[77], bytes);
    bytes[0] ^= 1;
    dump::to_double(dtype, bytes, 1, &noisy.values[77]);
    const Values noise = values_of(t, noisy);
    EXPECT_EQ(noise.outcome, Outcome::within) << dump::name_of(dtype);
    EXPECT_GT(noise.relative, 0);
    EXPECT_EQ(noise.max_ulp, 1u);
    const Values mistake = values_of(t, wrong);
    EXPECT_EQ(mistake.outcome, Outcome::different) << dump::name_of(dtype);
    EXPECT_NEAR(mistake.relative / (4 * rtol), 1, 0.3) << dump::name_of(dtype);
  }
}

TEST(Values, FactorsAreMeasured) {
  const MadeTensor t = made("t", {999});
  MadeTensor twice = t;
  for (double& value : twice.values) value *= 2;
  const Values values = values_of(t, twice);
  EXPECT_DOUBLE_EQ(values.relative, 1);
  EXPECT_DOUBLE_EQ(values.norm_b / values.norm_a, 2);
  EXPECT_NEAR(values.cosine, 1, 1e-12);
}

TEST(Values, NumbersWhoseSquaresOverflowOrVanish) {
  for (const double scale : {1e-200, 1e200, 1e-310}) {
    MadeTensor t{{99}, made_values("t", 99, scale), Dtype::f64}, twice = t, near = t;
    for (double& value : twice.values) value *= 2;
    near.values[3] = std::nextafter(near.values[3], kInfinity);
    EXPECT_NEAR(values_of(t, twice).relative, 1, 1e-9) << scale;
    if (scale > 1e-300) {  // below, a last bit is worth more
      EXPECT_EQ(values_of(t, near).outcome, Outcome::within) << scale;
    }
    EXPECT_GT(values_of(t, near).relative, 0) << scale;
  }
}

TEST(Values, NothingAgainstSomething) {
  const MadeTensor t = made("t", {10});
  const MadeTensor zeros{{10}, std::vector<double>(10, 0.0), Dtype::f64};
  EXPECT_EQ(values_of(zeros, t).relative, kInfinity);
  EXPECT_EQ(values_of(zeros, t).outcome, Outcome::different);
  EXPECT_DOUBLE_EQ(values_of(t, zeros).relative, 1);
  MadeTensor negative = zeros;
  for (double& value : negative.values) value = -0.0;
  EXPECT_EQ(values_of(zeros, negative).outcome, Outcome::within);
  EXPECT_EQ(values_of(zeros, negative).relative, 0);
}

TEST(Values, NaNsAreNeverWithin) {
  const MadeTensor t = made("t", {5000});
  MadeTensor nan = t, other = t;
  nan.values[4500] = std::nan("");
  other.values[10] = std::nan("");
  for (const auto& [a, b] : {std::pair(t, nan), std::pair(nan, t), std::pair(nan, other)}) {
    const Values values = values_of(a, b);
    EXPECT_EQ(values.outcome, Outcome::different);
    EXPECT_EQ(values.relative, kInfinity);
    EXPECT_GT(values.nan_a + values.nan_b, 0);
  }
  const auto pair = pair_of(t, nan);
  const Place place = find_place(pair->a, pair->b, values_of(*pair), pair->tolerance);
  EXPECT_EQ(place.first, 4500);
  EXPECT_EQ(place.count, 1);
  EXPECT_EQ(values_of(nan, nan).outcome, Outcome::different);  // nor the same as itself
  EXPECT_EQ(values_of(nan, nan).nan_b, 1);
}

TEST(Values, Infinities) {
  MadeTensor t = made("t", {50});
  t.values[7] = kInfinity;
  MadeTensor noisy = t, other = t;
  noisy.values[9] = std::nextafter(noisy.values[9], 1);
  other.values[7] = -kInfinity;
  EXPECT_EQ(values_of(t, noisy).outcome, Outcome::within);
  EXPECT_EQ(values_of(t, other).outcome, Outcome::different);
  EXPECT_EQ(values_of(t, t).inf_a, 1);
}

TEST(Values, OtherTypesOfTheSameValues) {
  MadeTensor single = made("t", {60}, Dtype::f32);
  MadeTensor wide = single;
  wide.dtype = Dtype::f64;
  const Values values = values_of(single, wide);
  EXPECT_EQ(values.outcome, Outcome::within);
  EXPECT_EQ(values.max_ulp, std::nullopt);
  const MadeTensor tokens{{3}, {1, 2, 300}, Dtype::i32};
  MadeTensor wide_tokens = tokens;
  wide_tokens.dtype = Dtype::i64;
  EXPECT_EQ(values_of(tokens, wide_tokens).outcome, Outcome::within);
  wide_tokens.values[2] = 301;
  EXPECT_EQ(values_of(tokens, wide_tokens).outcome, Outcome::different);
}

TEST(Values, WholeNumbersAreEqualOrNot) {
  const MadeTensor a{{2}, {4e15, 1}, Dtype::i64};
  MadeTensor b = a;
  b.values[0] += 1;
  const auto pair = pair_of(a, b);
  EXPECT_EQ(values_of(*pair).outcome, Outcome::different);
  EXPECT_EQ(find_place(pair->a, pair->b, values_of(*pair), pair->tolerance).first, 0);
}

TEST(Values, ThePlaceLeavesNoiseAside) {
  const MadeTensor t = made("t", {60, 80});
  MadeTensor wrong = t;
  for (double& value : wrong.values) value = std::nextafter(value, 10);
  for (const int64_t row : {20, 21, 30})
    for (const int64_t column : {11, 44}) wrong.values[static_cast<size_t>(row * 80 + column)] += 0.5;
  Pair pair;
  pair.a = assemble("t", pair.left.add(0, t, whole(t)).shards).tensor;
  for (int rank = 0; rank < 3; rank++)
    pair.right.add(rank, wrong, sliced(wrong, {{rank * 20, rank * 20 + 20}, {0, 80}}));
  pair.b = assemble("t", pair.right.shards).tensor;
  pair.tolerance = tolerance_of(Dtype::f64);
  const Values values = values_of(pair);
  ASSERT_EQ(values.outcome, Outcome::different);
  const Place place = find_place(pair.a, pair.b, values, pair.tolerance);
  EXPECT_EQ(place.first, 20 * 80 + 11);
  EXPECT_EQ(place.count, 6);
  EXPECT_EQ(place.box, (std::vector<dump::Range>{{20, 31}, {11, 45}}));
  EXPECT_EQ(place.ranks_a, std::set<int>{0});
  EXPECT_EQ(place.ranks_b, std::set<int>{1});
  EXPECT_EQ(place.other_ranks_b, (std::set<int>{0, 2}));
}

// Wherever a norm says "different" there is an element to show, however evenly the error is spread.
TEST(Values, ThereIsAlwaysAnElementToShow) {
  for (const double factor : {1.0001, 1.5, 100.0}) {
    MadeTensor t{{1000}, std::vector<double>(1000, 1.0), Dtype::f64}, wrong = t;
    for (double& value : wrong.values) value += factor * 1e-12;
    const auto pair = pair_of(t, wrong);
    const Values values = values_of(*pair);
    ASSERT_EQ(values.outcome, Outcome::different);
    EXPECT_EQ(find_place(pair->a, pair->b, values, pair->tolerance).first, 0);
  }
}

TEST(Control, SeesEachDtype) {
  for (const Dtype dtype : dump::kDtypes) {
    MadeTensor t = made("t", {3, 7}, dtype);
    if (!dump::is_float(dtype))
      for (double& value : t.values) value = std::floor(std::fabs(value));
    MadeShards shards;
    shards.add(0, t, sliced(t, {{0, 3}, {0, 4}})).add(1, t, sliced(t, {{0, 3}, {4, 7}}));
    for (const double rtol : {tolerance_of(dtype).rtol, 0.0, 0.1}) {
      const Control control = control_of(assemble("t", shards.shards).tensor, {rtol, ""});
      EXPECT_EQ(control.fault, "") << dump::name_of(dtype) << " " << rtol;
      EXPECT_EQ(control.index, (std::vector<int64_t>{1, 3}));
    }
  }
}

TEST(Control, SeesExtremes) {
  for (const double value : {0.0, 1e-310, 1e300, kInfinity, std::nan("")}) {
    const MadeTensor t{{5}, std::vector<double>(5, value), Dtype::f64};
    MadeShards shards;
    EXPECT_EQ(control_of(assemble("t", shards.add(0, t, whole(t)).shards).tensor, tolerance_of(Dtype::f64)).fault, "")
        << value;
  }
  const MadeTensor one{{}, {2.5}, Dtype::f32};
  MadeShards shards;
  EXPECT_EQ(control_of(assemble("t", shards.add(0, one, whole(one)).shards).tensor, tolerance_of(Dtype::f32)).fault,
            "");
}

// A tolerance that everything is within is one that no comparison can fail.
TEST(Control, FailsWhereNothingCanBeSeen) {
  const MadeTensor t = made("t", {5});
  MadeShards shards;
  EXPECT_EQ(control_of(assemble("t", shards.add(0, t, whole(t)).shards).tensor, {kInfinity, ""}).fault,
            "a change of twice the tolerance was not seen");
}

TEST(Order, IsThatOfTheComputation) {
  const std::vector<std::string> in_order = {"batch/mask",
                                             "batch/tokens",
                                             "tokens",
                                             "act/transformer.wte",
                                             "act/transformer.drop",
                                             "act/transformer.h.0.ln_1",
                                             "act/transformer.h.0.attn.c_attn",
                                             "act/transformer.h.0.attn.heads",
                                             "act/transformer.h.0.attn.c_proj",
                                             "act/transformer.h.0.attn",
                                             "act/transformer.h.0.ln_2",
                                             "act/transformer.h.0.mlp.c_fc",
                                             "act/transformer.h.0.mlp.gelu",
                                             "act/transformer.h.0.mlp.c_proj",
                                             "act/transformer.h.0.mlp",
                                             "act/transformer.h.0",
                                             "act/transformer.h.1.attn",
                                             "act/transformer.h.10.attn",
                                             "act/transformer.ln_f",
                                             "act/logits",
                                             "loss",
                                             "grad/lm_head.weight",
                                             "grad/transformer.ln_f.weight",
                                             "grad/transformer.h.10.mlp.c_proj.weight",
                                             "grad/transformer.h.10.mlp.c_fc.weight",
                                             "grad/transformer.h.10.ln_2.weight",
                                             "grad/transformer.h.10.attn.c_proj.weight",
                                             "grad/transformer.h.10.attn.c_attn.weight",
                                             "grad/transformer.h.10.attn.c_attn.bias",
                                             "grad/transformer.h.10.ln_1.weight",
                                             "grad/transformer.h.2.mlp.c_proj.weight",
                                             "grad/transformer.h.2.mlp.experts.10.c_fc.weight",
                                             "grad/transformer.h.2.mlp.experts.9.c_fc.weight",
                                             "grad/transformer.h.2.mlp.router.weight",
                                             "grad/transformer.wpe.weight",
                                             "grad/transformer.wte.weight",
                                             "loss_scale",
                                             "norm",
                                             "lr",
                                             "adam_m/transformer.wte.weight",
                                             "adam_v/transformer.wte.weight",
                                             "master/transformer.wte.weight",
                                             "param/transformer.wte.weight",
                                             "param/transformer.h.0.ln_1.bias",
                                             "param/lm_head.weight",
                                             "my/own"};
  for (size_t i = 0; i < in_order.size(); i++)
    for (size_t j = 0; j < in_order.size(); j++)
      EXPECT_EQ(computed_before(in_order[i], in_order[j]), i < j) << in_order[i] << " and " << in_order[j];
}

TEST(Order, KnowsOtherModelsWords) {
  const std::vector<std::string> in_order = {"param/model.embed_tokens.weight",
                                             "param/model.layers.0.input_layernorm.weight",
                                             "param/model.layers.0.self_attn.q_proj.weight",
                                             "param/model.layers.0.self_attn.k_proj.weight",
                                             "param/model.layers.0.self_attn.o_proj.weight",
                                             "param/model.layers.0.post_attention_layernorm.weight",
                                             "param/model.layers.0.mlp.gate_proj.weight",
                                             "param/model.layers.0.mlp.up_proj.weight",
                                             "param/model.layers.0.mlp.down_proj.weight",
                                             "param/model.layers.11.input_layernorm.weight",
                                             "param/model.norm.weight",
                                             "param/lm_head.weight"};
  for (size_t i = 1; i < in_order.size(); i++)
    EXPECT_TRUE(computed_before(in_order[i - 1], in_order[i])) << in_order[i];
}

}  // namespace
}  // namespace lockstep::verify
