// SPDX-License-Identifier: MIT
//
// A training that is cut in two: what a dump holds is enough to go on as if it had never stopped, in any layout.

#include "reference/train/run/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "reference/train/run/refusal.h"
#include "tests/train/run/harness.h"
#include "verify/assemble/assemble.h"

namespace train::test {
namespace {

namespace dump = lockstep::dump;

std::string refusal(const std::function<void()>& ask) {
  try {
    ask();
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "";
}

TEST(TrainingState, ComesBackFromItsText) {
  const uint64_t large = std::numeric_limits<uint64_t>::max();
  for (const TrainingState& state :
       {TrainingState{6, 5, {7, 130, 50}, {512, 3}}, TrainingState{0, 0, {large, 0, 1}, {}},
        TrainingState{1, 1, {1, 49, 50}, {0.1, 0}}})
    EXPECT_EQ(read_state(state_text(state), "f"), state) << state_text(state);
  EXPECT_EQ(state_text({6, 5, {7, 130, 50}, {512, 3}}),
            R"({"step":6,"updates":5,"sampler":{"seed":7,"epoch":2,"position":30,"samples":50},)"
            R"("loss_scale":{"scale":512.0,"steps_without_overflow":3}})");
}

TEST(TrainingState, OtherTextsAreRefusedInASentence) {
  const std::string good = state_text({6, 5, {7, 130, 50}, {512, 3}});
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string text = good;
    text.replace(text.find(part), part.size(), other);
    return refusal([&] { read_state(text, "f"); });
  };
  EXPECT_EQ(refusal([] { read_state("{", "f"); }), "f: the training's state is not a JSON object");
  EXPECT_EQ(with("\"step\"", "\"stop\""), "f: the training's state has no \"step\"");
  EXPECT_EQ(with("\"step\":6", "\"step\":-6"),
            "f: \"step\" of the training's state is -6, but must be a whole number from 0 on");
  EXPECT_EQ(with("\"samples\":50", "\"samples\":0"),
            "f: \"samples\" of the training's state is 0, but must be a whole number from 1 on");
  EXPECT_EQ(with("\"position\":30", "\"position\":50"),
            "f: epoch 2 and position 50 of the training's state are not in epochs of 50 samples");
  EXPECT_NE(with("\"epoch\":2", "\"epoch\":9223372036854775807"), "");
  EXPECT_EQ(with("512.0", "\"512\""),
            "f: \"scale\" of the training's state is \"512\", but must be a number of at least 0");
  EXPECT_EQ(with("{\"seed\"", "[],\"x\":{\"seed\""), "f: the training's state has no \"samples\"");
}

// What a step of a dump holds.
struct Kept {
  TrainingState state;
  std::map<std::string, std::vector<double>> tensors;
  std::map<std::string, std::vector<int64_t>> shapes;
};
Kept read(const Trained& trained, int64_t number) {
  Kept kept;
  const auto folder = dump::open_folder(*trained.dump);
  if (!folder) throw std::runtime_error(folder.error());
  const auto step = dump::open_step(*folder, number);
  if (!step) throw std::runtime_error(step.error());
  for (const dump::Safetensors& file : step->files) {
    const TrainingState state = read_state(file.metadata().at(kStateKey), file.path());
    if (&file == &step->files.front()) kept.state = state;
    EXPECT_EQ(state, kept.state) << file.path();
  }
  for (const auto& [name, shards] : step->tensors) {
    const auto whole = lockstep::verify::assemble(name, shards);
    EXPECT_TRUE(whole.faults.empty()) << name;
    std::vector<double>& values = kept.tensors[name];
    for (int64_t i = 0; i < whole.tensor.elements; ++i) values.push_back(value_at(whole.tensor, i));
    kept.shapes[name] = whole.tensor.shape;
  }
  return kept;
}

// The parameters, as --init reads them.
std::string write_parameters(const Kept& kept, const std::string& path) {
  std::vector<dump::TensorToStore> tensors;
  for (const auto& [name, values] : kept.tensors)
    if (name.rfind("param/", 0) == 0)
      tensors.push_back({name.substr(6), dump::Dtype::f64, kept.shapes.at(name), values.data()});
  const auto written = dump::write_safetensors(path, tensors);
  EXPECT_TRUE(written) << written.error();
  return path;
}

// A text of 8.5 global batches, so that its first epoch ends after the cut; without momentum, so that parameters are
// all that the optimizer keeps.
struct Cut : testing::Test {
  Cut() {
    std::ofstream text(path + ".txt");
    for (int i = 0; i < 72 * 16; ++i) text << static_cast<char>('a' + (i * i + i / 7) % 23) << (i % 90 ? "" : "\n\n");
    text.close();
    whole = train(base + "--dp 2 --zero 1");
    kept = read(whole, 6);
    rest = base + "--init " + write_parameters(kept, path + ".safetensors") + ' ';
  }
  ~Cut() override {
    std::filesystem::remove(path + ".txt");
    std::filesystem::remove(path + ".safetensors");
  }
  const std::string path = std::filesystem::temp_directory_path() / ("train-state-" + std::to_string(getpid()));
  const std::string base =
      "--layers 2 --heads 2 --width 16 --seq 16 --global-batch 8 --steps 11 --dtype fp64 --optimizer sgd --momentum 0 "
      "--lr 0.1 --warmup 8 --decay-steps 11 --dropout 0.1 --mask-fraction 0.4 --packed --loss-scale 64 "
      "--loss-scale-growth 4 --data " +
      path + ".txt ";
  Trained whole;
  Kept kept;
  std::string rest;
};

std::vector<double> after(const std::vector<double>& all, size_t steps) {
  return {all.begin() + static_cast<std::ptrdiff_t>(steps), all.end()};
}

TEST_F(Cut, GoesOnExactly) {
  EXPECT_EQ(kept.state.step, 6);
  EXPECT_EQ(kept.state.updates, 6);
  EXPECT_EQ(kept.state.sampler.next, 6 * 8);
  EXPECT_LT(kept.state.sampler.samples, 11 * 8 - 1);  // an epoch ends in what follows
  EXPECT_GT(kept.state.sampler.samples, 7 * 8);
  EXPECT_EQ(kept.state.loss_scale, (LossScaleState{128, 2}));
  const Trained on = train_from(kept.state, rest + "--dp 2 --zero 1");
  EXPECT_EQ(on.loss, after(whole.loss, 6));
  EXPECT_EQ(on.norm, after(whole.norm, 6));
  EXPECT_EQ(on.scale, after(whole.scale, 6));
  const Kept last = read(on, 11), expected = read(whole, 11);
  EXPECT_EQ(last.state, expected.state);
  EXPECT_EQ(last.tensors, expected.tensors);
}

TEST_F(Cut, GoesOnInAnotherLayout) {
  for (const char* layout : {"--dp 1", "--dp 4 --fsdp full", "--dp 2 --zero 2 --accum 2", "--tp 2 --dp 1"}) {
    const Trained on = train_from(kept.state, rest + layout);
    const Kept last = read(on, 11), expected = read(whole, 11);
    EXPECT_EQ(last.state, expected.state) << layout;
    for (const auto& [name, values] : expected.tensors) {
      ASSERT_EQ(last.tensors.count(name), 1u) << name;
      double worst = 0, size = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        worst = std::max(worst, std::fabs(last.tensors.at(name)[i] - values[i]));
        size = std::max(size, std::fabs(values[i]));
      }
      EXPECT_LE(worst, 1e-11 * size) << name << ' ' << layout;
    }
  }
}

// Each number of the state is needed.
TEST_F(Cut, FromAnotherStateItGoesElsewhere) {
  TrainingState state = kept.state;
  state.sampler.next += 1;
  EXPECT_NE(train_from(state, rest + "--dp 2 --zero 1").loss[0], whole.loss[6]);
  state = kept.state;
  state.step = 7;
  EXPECT_NE(train_from(state, rest + "--dp 2 --zero 1").loss[1], whole.loss[7]);  // by another learning rate
  state = kept.state;
  state.sampler.seed = 9;
  EXPECT_EQ(refusal([&] { train_from(state, rest); }), "the state is of a training with seed = 9, and this one's is 1");
  state = kept.state;
  state.sampler.samples = 99;
  EXPECT_NE(refusal([&] { train_from(state, rest); }).find("of a text of 99 samples to train on, and this one has "),
            std::string::npos);
}

// AdamW's corrections go by the number of updates, and moments that begin at zero again make no step of their own here:
// the first update after the cut is as large as the corrections make it.
TEST(TrainingStateOfAdamW, CorrectionsGoByTheUpdatesThatWere) {
  const std::string line = "--layers 1 --heads 2 --width 16 --seq 16 --steps 1 --lr 0.01 --clip 0 --weight-decay 0 ";
  const Trained whole = train(line);
  TrainingState state = read(whole, 0).state;
  EXPECT_EQ(state.updates, 0);
  const Trained fresh = train_from(state, line);
  state.updates = 5;
  const Trained later = train_from(state, line);
  const std::string bias = "param/transformer.ln_f.bias";
  const std::vector<double> first = read(fresh, 1).tensors.at(bias), sixth = read(later, 1).tensors.at(bias);
  EXPECT_EQ(first, read(whole, 1).tensors.at(bias));
  // m = (1 - b1) g and v = (1 - b2) g^2, corrected by 1 - b^6 instead of 1 - b.
  const double expected = (0.1 / (1 - std::pow(0.9, 6))) / std::sqrt(0.05 / (1 - std::pow(0.95, 6)));
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(sixth[i] / first[i], expected, 1e-3);
}

}  // namespace
}  // namespace train::test
