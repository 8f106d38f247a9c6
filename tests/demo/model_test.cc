// SPDX-License-Identifier: MIT
//
// The demo trains something real only if its hand-written backward is the derivative of its forward. Every parameter
// tensor is compared with central differences of the loss.

#include "reference/demo/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace demo {
namespace {

constexpr int kVocabulary = 11;

Batch random_batch(int rows, unsigned seed) {
  std::mt19937 random(seed);
  Batch batch;
  for (int i = 0; i < rows * kContext; ++i) batch.context.push_back(static_cast<int>(random() % kVocabulary));
  for (int i = 0; i < rows; ++i) batch.target.push_back(static_cast<int>(random() % kVocabulary));
  return batch;
}

double slope_of_loss(const Model& model, float& value, const Batch& batch) {
  Activations activations;
  const float kept = value;
  const float step = 0.01F;
  value = kept + step;
  const double above = forward(model, batch, activations);
  value = kept - step;
  const double below = forward(model, batch, activations);
  value = kept;
  return (above - below) / (2.0 * static_cast<double>(step));
}

TEST(DemoModel, BackwardIsTheDerivativeOfForward) {
  Model model = make_model(kVocabulary, 7);
  const Batch batch = random_batch(6, 8);
  Activations activations;
  forward(model, batch, activations);
  backward(model, batch, activations, [](int) {});

  std::mt19937 random(9);
  for (Parameter* p : model.parameters())
    for (int probe = 0; probe < 40; ++probe) {
      const size_t i = random() % p->value.size();
      const double expected = slope_of_loss(model, p->value[i], batch);
      EXPECT_NEAR(static_cast<double>(p->grad[i]), expected, 0.002 + 0.01 * std::abs(expected))
          << "tensor of " << p->value.size() << ", element " << i;
    }
}

TEST(DemoModel, EveryGradientIsReadyOnceAndCompleteThen) {
  Model model = make_model(kVocabulary, 1);
  const Batch batch = random_batch(4, 2);
  Activations activations;
  forward(model, batch, activations);
  std::vector<std::vector<float>> when_ready(5);
  backward(model, batch, activations, [&](int i) {
    EXPECT_TRUE(when_ready[static_cast<size_t>(i)].empty());
    when_ready[static_cast<size_t>(i)] = model.parameters()[static_cast<size_t>(i)]->grad;
  });
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(when_ready[i], model.parameters()[i]->grad) << i;
}

TEST(DemoModel, AdamLearnsOneBatchByHeart) {
  Model model = make_model(kVocabulary, 3);
  const Batch batch = random_batch(8, 4);
  Activations activations;
  const double before = forward(model, batch, activations) / 8;
  for (int step = 1; step <= 150; ++step) {
    forward(model, batch, activations);
    backward(model, batch, activations, [](int) {});
    adam(model, step, 0.01F, 1.0F / 8);
  }
  EXPECT_NEAR(before, std::log(kVocabulary), 0.5);
  EXPECT_LT(forward(model, batch, activations) / 8, 0.1);
}

}  // namespace
}  // namespace demo
