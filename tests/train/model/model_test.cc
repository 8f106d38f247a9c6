// SPDX-License-Identifier: MIT
//
// What others rely on: names and shapes, first values that do not depend on the layout, the same bits from the same
// inputs however the passes are arranged, and memory that is known beforehand.

#include <cmath>
#include <limits>

#include "tests/train/model/harness.h"

namespace train::test {
namespace {

Groups tensor_parallel(int rank, int size) {
  Groups groups;
  groups.tp = Comm(nullptr, rank, size, "tp", {});  // for sizes only: nothing here communicates
  return groups;
}

std::string described(const Config& config) {
  std::string text;
  const Parameters parameters(config, Groups{});
  for (const auto& p : parameters.all()) {
    text += p->name;
    for (const int64_t n : p->global) text += " " + std::to_string(n);
    text += "\n";
  }
  return text;
}

TEST(Parameters, AreNanoGpts) {
  Config config = small("names").config;
  config.layers = 1;
  EXPECT_EQ(described(config),
            "transformer.wte.weight 11 16\n"
            "transformer.wpe.weight 12 16\n"
            "transformer.h.0.ln_1.weight 16\n"
            "transformer.h.0.ln_1.bias 16\n"
            "transformer.h.0.attn.c_attn.weight 48 16\n"
            "transformer.h.0.attn.c_attn.bias 48\n"
            "transformer.h.0.attn.c_proj.weight 16 16\n"
            "transformer.h.0.attn.c_proj.bias 16\n"
            "transformer.h.0.ln_2.weight 16\n"
            "transformer.h.0.ln_2.bias 16\n"
            "transformer.h.0.mlp.c_fc.weight 64 16\n"
            "transformer.h.0.mlp.c_fc.bias 64\n"
            "transformer.h.0.mlp.c_proj.weight 16 64\n"
            "transformer.h.0.mlp.c_proj.bias 16\n"
            "transformer.ln_f.weight 16\n"
            "transformer.ln_f.bias 16\n");
  config.layers = 3;
  config.kv_heads = 2;
  config.positions = Positions::rotary;
  config.tied = false;
  config.share_layers = true;
  config.experts = 2;
  const std::string text = described(config);
  for (const char* line : {"h.2.attn.c_attn.weight 32 16\n", "\nlm_head.weight 11 16\n", "h.0.mlp.router.weight 2 16\n",
                           "h.2.mlp.experts.1.c_fc.weight 64 16\n", "h.2.mlp.experts.1.c_proj.bias 16\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
  for (const char* word : {"wpe", "h.1.", "mlp.c_fc"}) EXPECT_EQ(text.find(word), std::string::npos) << word;
}

// The elements of a part, found in the whole by its cut; padding is zero.
Values part_of(const Values& whole, const Parameter& p) {
  const int64_t columns = p.global.size() == 2 ? p.global[1] : 1;
  const auto at = [&](int64_t row, int64_t column) {
    return row < p.global[0] ? whole[static_cast<size_t>(row * columns + column)] : 0;
  };
  Values part;
  const auto cut = p.cut.empty() ? std::vector<std::array<int64_t, 2>>{{0, p.global[0]}} : p.cut;
  if (p.cut_dim == 1) {
    for (int64_t row = 0; row < p.global[0]; ++row)
      for (int64_t column = cut[0][0]; column < cut[0][1]; ++column) part.push_back(at(row, column));
    return part;
  }
  for (const auto& range : cut)
    for (int64_t row = range[0]; row < range[1]; ++row)
      for (int64_t column = 0; column < columns; ++column) part.push_back(at(row, column));
  return part;
}

TEST(Parameters, BeginAlikeHoweverTheyAreCut) {
  Rig rig(small("any"));
  Memory memory(0);
  const auto first_values = [&](const Config& config, const Parameter& p) {
    const View view = memory.allocate(Purpose::workspace, Dtype::f64, p.count);
    fill(rig.stream(), view, std::numeric_limits<double>::quiet_NaN());
    initialise(rig.stream(), config, p, view);
    return rig.get(view);
  };
  Config config = small("cut").config;
  config.kv_heads = 2;
  config.vocab_multiple = 3;
  const Parameters whole(config, Groups{});
  for (const int size : {1, 2, 4}) {
    for (int rank = 0; rank < size; ++rank) {
      const Parameters parts(config, tensor_parallel(rank, size));
      ASSERT_EQ(parts.all().size(), whole.all().size());
      for (const auto& part : parts.all())
        EXPECT_EQ(first_values(config, *part), part_of(first_values(config, whole[part->name]), *part))
            << part->name << " rank " << rank << " of " << size;
    }
  }
}

// Every row and column is somebody's, once; shared key heads and padding aside.
TEST(Parameters, PartsTogetherAreTheWhole) {
  const Config config = small("cut").config;
  const Parameters whole(config, Groups{});
  for (const auto& p : whole.all()) {
    std::vector<int> owners(static_cast<size_t>(std::max(p->global[0], p->global.back())), 0);
    int64_t cut_dim = 0;
    bool cut = false;
    for (int rank = 0; rank < 2; ++rank) {
      const Parameters parts(config, tensor_parallel(rank, 2));
      const Parameter& part = parts[p->name];
      cut = !part.cut.empty();
      cut_dim = part.cut_dim;
      EXPECT_EQ(part.replicated_over_tp, !cut);
      for (const auto& range : part.cut)
        for (int64_t i = range[0]; i < std::min(range[1], p->global[static_cast<size_t>(cut_dim)]); ++i)
          ++owners[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; cut && i < p->global[static_cast<size_t>(cut_dim)]; ++i)
      EXPECT_EQ(owners[static_cast<size_t>(i)], 1) << p->name << " " << i;
  }
}

TEST(Parameters, BeginAsNanoGptDoes) {
  Config config = small("init").config;
  config.width = 64;
  config.layers = 8;
  Rig rig(small("any"));
  Memory memory(0);
  const auto spread = [&](const std::string& name) {
    const Parameters parameters(config, Groups{});
    const View view = memory.allocate(Purpose::workspace, Dtype::f64, parameters[name].count);
    initialise(rig.stream(), config, parameters[name], view);
    double squares = 0;
    for (const double x : rig.get(view)) squares += x * x;
    return std::sqrt(squares / static_cast<double>(view.size));
  };
  EXPECT_NEAR(spread("transformer.wte.weight"), 0.02, 0.002);
  EXPECT_NEAR(spread("transformer.h.3.attn.c_attn.weight"), 0.02, 0.001);
  EXPECT_NEAR(spread("transformer.h.3.attn.c_proj.weight"), 0.005, 0.0003);
  EXPECT_NEAR(spread("transformer.h.3.mlp.c_proj.weight"), 0.005, 0.0003);
  EXPECT_EQ(spread("transformer.h.3.mlp.c_fc.bias"), 0);
  EXPECT_EQ(spread("transformer.h.3.ln_2.weight"), 1);
}

TEST(Config, RefusesWhatCannotBe) {
  const auto error = [](void (*change)(Config&)) {
    Config config = small("any").config;
    change(config);
    return config_error(config);
  };
  EXPECT_EQ(error([](Config&) {}), "");
  EXPECT_EQ(error([](Config& c) { c.heads = 3; }), "width must be a multiple of heads, but 16 % 3");
  EXPECT_EQ(error([](Config& c) { c.kv_heads = 3; }), "heads must be a multiple of kv-heads, but 4 % 3");
  EXPECT_NE(error([](Config& c) { c.heads = 16, c.positions = Positions::rotary; }), "");
  EXPECT_NE(error([](Config& c) { c.dropout = 1; }), "");
  EXPECT_NE(error([](Config& c) { c.layers = 0; }), "");
  EXPECT_NE(error([](Config& c) { c.experts = 2, c.top_k = 3; }), "");
}

void everything(Experiment& s) {
  s.config.kv_heads = 2;
  s.config.layers = 3;
  s.config.share_layers = true;
  s.config.dropout = 0.1;
  s.config.vocab_multiple = 8;
  s.micro_batches = 2;
  s.packed = s.masked = true;
}

TEST(Model, SameBitsWithAnyNumberOfThreadsAndInTwoHalves) {
  set_threads(1);
  Rig rig(small("everything", everything));
  const double loss = rig.step();
  const auto gradients = rig.gradients();
  EXPECT_EQ(rig.step(), loss);
  EXPECT_EQ(rig.gradients(), gradients);
  EXPECT_EQ(rig.step(true), loss) << "the backward pass in two halves";
  EXPECT_EQ(rig.gradients(), gradients) << "the backward pass in two halves";
  for (const int threads : {2, 3}) {
    set_threads(threads);
    EXPECT_EQ(rig.step(), loss) << threads;
    EXPECT_EQ(rig.gradients(), gradients) << threads;
  }
  set_threads(1);
}

double distance(const std::map<std::string, Values>& a, const std::map<std::string, Values>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (const auto& [name, x] : a) {
    const Values& y = b.at(name);
    double difference = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += (x[i] - y[i]) * (x[i] - y[i]);
      size += y[i] * y[i];
    }
    worst = std::max(worst, std::sqrt(difference / size));
  }
  return worst;
}

// A sequence is the same (dropout, positions, loss) wherever it stands: two in one micro-batch or one in each of two.
TEST(Model, DoesNotDependOnHowSequencesAreBatched) {
  Rig together(small("together", [](Experiment& s) {
    everything(s);
    s.sequences = 2;
    s.micro_batches = 1;
  }));
  Rig apart(small("apart", [](Experiment& s) {
    everything(s);
    s.sequences = 1;
    s.micro_batches = 2;
  }));
  const double loss = together.step();
  EXPECT_NEAR(apart.step(), loss, 1e-13 * loss);
  EXPECT_LT(distance(apart.gradients(), together.gradients()), 1e-13);
  for (const double one : apart.get(apart.model().losses())) EXPECT_GT(one, 0) << "each micro-batch has its own";
}

// A pipeline of two stages with several micro-batches in flight: the same bits as one model.
TEST(Model, StagesTogetherAreTheModel) {
  const Experiment setup = small("stages", [](Experiment& s) {
    s.config.tied = false;
    s.config.dropout = 0.1;
    s.micro_batches = 2;
    s.masked = true;
  });
  Rig whole(setup), first(setup, {0, 1, 2}), second(setup, {3, 4, 5});
  whole.step();
  EXPECT_EQ(first.model().parameters().size() + second.model().parameters().size(), whole.model().parameters().size());
  first.begin_step();
  second.begin_step();
  std::vector<View> between;
  for (int k = 0; k < 2; ++k) {
    between.push_back(first.model().forward(first.strategy(), first.model().all(), k, k, first.batch(k), {}));
    first.get(between.back());  // the stages have streams of their own
    second.model().forward(second.strategy(), second.model().all(), k, k, second.batch(k), between.back());
  }
  for (int k = 0; k < 2; ++k) {
    second.strategy().begin_micro_batch(k);
    const View grad = second.model().backward(second.strategy(), second.model().all(), k, k, second.batch(k), View{});
    second.get(grad);
    first.strategy().begin_micro_batch(k);
    first.model().backward(first.strategy(), first.model().all(), k, k, first.batch(k), grad);
    first.get(grad);  // waits: the second stage's next backward pass reuses the memory
  }
  EXPECT_EQ(second.get(second.model().losses()), whole.get(whole.model().losses()));
  auto gradients = first.gradients();
  gradients.merge(second.gradients());
  EXPECT_EQ(gradients, whole.gradients());
}

TEST(Model, EvaluationHasNoDropoutAndLeavesNoTrace) {
  Rig dropping(small("dropping", everything));
  Rig plain(small("plain", [](Experiment& s) {
    everything(s);
    s.config.dropout = 0;
  }));
  const double loss = dropping.step(), evaluated = dropping.evaluate();
  const auto gradients = dropping.gradients();
  const double wanted = plain.step();
  EXPECT_NEAR(evaluated, wanted, 1e-13 * wanted);
  EXPECT_NEAR(plain.evaluate(), wanted, 1e-13 * wanted);
  EXPECT_GT(std::abs(loss - wanted), 1e-3);
  EXPECT_EQ(dropping.step(), loss);
  EXPECT_EQ(dropping.gradients(), gradients);
}

TEST(Model, FrozenParametersChangeNothingForOthers) {
  Rig whole(small("whole", everything));
  Rig frozen(small("frozen", [](Experiment& s) {
    everything(s);
    s.config.freeze = {"*ln_1.weight", "*.mlp.*", "transformer.wte.weight"};
  }));
  EXPECT_EQ(whole.step(), frozen.step());
  const auto all = whole.gradients(), some = frozen.gradients();
  EXPECT_LT(some.size(), all.size());
  for (const auto& [name, gradient] : some) EXPECT_EQ(gradient, all.at(name)) << name;
  EXPECT_EQ(some.count("transformer.wte.weight") + some.count("transformer.h.0.mlp.c_fc.bias"), 0u);
  EXPECT_EQ(some.count("transformer.h.0.ln_1.bias"), 1u);
}

TEST(Model, StepsAllocateNothingAndActivationsAreTheFormulas) {
  const Experiment setup = small("memory", [](Experiment& s) {
    s.config.kv_heads = 2;
    s.config.dropout = 0.1;
    s.micro_batches = 2;
  });
  Rig rig(setup);
  rig.step();
  rig.evaluate();
  const auto used = [&] {
    size_t bytes = 0;
    for (int i = 0; i < kPurposes; ++i) bytes += rig.memory().used(static_cast<Purpose>(i));
    return bytes;
  };
  const size_t before = used();
  rig.step();
  rig.evaluate();
  EXPECT_EQ(used(), before);

  const Config& c = setup.config;
  const int64_t rows = setup.sequences * c.seq, width = c.width, queries = c.heads * c.head_width(),
                keys = c.kv_heads * c.head_width();
  const int64_t attention = 2 * width + (queries + 2 * keys) + queries + (2 + c.heads);
  const int64_t mlp = 2 * width + 2 * c.hidden() + 2;
  const int64_t head = width + c.vocab + 2 + 3;
  EXPECT_EQ(rig.model().activation_bytes(),
            static_cast<size_t>(8 * rows * (width + c.layers * (attention + mlp) + head)));
}

TEST(Model, ALossScaleOfTwoToTheNMovesNoBit) {
  const auto gradients = [](double scale) {
    Experiment setup = small("scaled", everything);
    setup.config.dtype = Dtype::f32;
    setup.loss_scale = scale;
    Rig rig(setup);
    rig.step();
    return rig.gradients();
  };
  auto plain = gradients(1);
  for (auto& [name, gradient] : plain)
    for (double& x : gradient) x *= 1024;
  EXPECT_EQ(gradients(1024), plain);
}

TEST(Model, NarrowTypesComeClose) {
  const auto run = [](Dtype dtype) {
    Experiment setup = small("narrow", everything);
    setup.config.dtype = dtype;
    auto rig = std::make_unique<Rig>(setup);
    rig->step();
    return rig;
  };
  const auto f64 = run(Dtype::f64), f32 = run(Dtype::f32), bf16 = run(Dtype::bf16);
  EXPECT_LT(distance(f32->gradients(), f64->gradients()), 1e-5);
  EXPECT_GT(distance(f32->gradients(), f64->gradients()), 0);
  EXPECT_LT(distance(bf16->gradients(), f64->gradients()), 0.2);
  EXPECT_EQ(f32->strategy().owned()[0].grad.dtype, Dtype::f32);
  EXPECT_EQ(bf16->strategy().owned()[0].grad.dtype, Dtype::f32);
  const double wanted = f64->evaluate();
  EXPECT_NEAR(f32->evaluate(), wanted, 1e-5 * wanted);
  EXPECT_NEAR(bf16->evaluate(), wanted, 2e-2 * wanted);
}

// Gradient descent lowers the loss as much as the gradient says: by rate * |gradient|^2.
TEST(Model, AStepDownTheGradientLowersTheLoss) {
  Rig rig(small("descent", [](Experiment& s) { s.masked = true; }));
  const double before = rig.step(), rate = 1e-7;
  double squares = 0;
  for (const auto& [name, gradient] : rig.gradients())
    for (const double x : gradient) squares += x * x;
  for (const Owned& owned : rig.strategy().owned()) add_to(rig.stream(), owned.value, owned.grad, -rate);
  EXPECT_NEAR(before - rig.step(), rate * squares, 1e-3 * rate * squares);
}

}  // namespace
}  // namespace train::test
