// SPDX-License-Identifier: MIT
//
// Forward, backward, Adam.

#include "reference/demo/model.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace demo {
namespace {

constexpr int kInput = kContext * kEmbedding;

Parameter make_parameter(size_t size, float scale, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  Parameter p;
  p.value.resize(size);
  for (float& v : p.value) v = scale > 0 ? uniform(random) : 0.0F;
  p.grad.resize(size);
  p.momentum.resize(size);
  p.variance.resize(size);
  return p;
}

// out [rows, columns] += in [rows, inner] * weight [inner, columns]
void multiply(float* out, const float* in, const float* weight, int rows, int inner, int columns) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < inner; ++i) {
      const float a = in[r * inner + i];
      for (int c = 0; c < columns; ++c) out[r * columns + c] += a * weight[i * columns + c];
    }
}

// grad [inner, columns] += in [rows, inner] transposed * d_out [rows, columns]
void multiply_backward_weight(float* grad, const float* in, const float* d_out, int rows, int inner, int columns) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < inner; ++i) {
      const float a = in[r * inner + i];
      for (int c = 0; c < columns; ++c) grad[i * columns + c] += a * d_out[r * columns + c];
    }
}

// d_in [rows, inner] = d_out [rows, columns] * weight [inner, columns] transposed
void multiply_backward_input(float* d_in, const float* d_out, const float* weight, int rows, int inner, int columns) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < inner; ++i) {
      float sum = 0;
      for (int c = 0; c < columns; ++c) sum += d_out[r * columns + c] * weight[i * columns + c];
      d_in[r * inner + i] = sum;
    }
}

void add_rows(float* grad, const float* d_out, int rows, int columns) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) grad[c] += d_out[r * columns + c];
}

// Turns a row of logits into probabilities and returns the cross entropy of the target.
double softmax(float* row, int size, int target) {
  const float top = *std::max_element(row, row + size);
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += std::exp(static_cast<double>(row[i] - top));
  const double loss = std::log(sum) + static_cast<double>(top - row[target]);
  for (int i = 0; i < size; ++i) row[i] = static_cast<float>(std::exp(static_cast<double>(row[i] - top)) / sum);
  return loss;
}

int rows_of(const Batch& batch) { return static_cast<int>(batch.target.size()); }

}  // namespace

Model make_model(int vocabulary, unsigned seed) {
  std::mt19937 random(seed);
  const size_t v = static_cast<size_t>(vocabulary);
  Model model;
  model.vocabulary = vocabulary;
  model.embedding = make_parameter(v * kEmbedding, 0.5F, random);
  model.hidden =
      make_parameter(static_cast<size_t>(kInput) * kHidden, 1.0F / std::sqrt(static_cast<float>(kInput)), random);
  model.hidden_bias = make_parameter(kHidden, 0, random);
  model.head = make_parameter(kHidden * v, 1.0F / std::sqrt(static_cast<float>(kHidden)), random);
  model.head_bias = make_parameter(v, 0, random);
  return model;
}

double forward(const Model& model, const Batch& batch, Activations& act) {
  const int rows = rows_of(batch);
  const int v = model.vocabulary;

  act.x.clear();
  for (int character : batch.context) {
    const auto vector = model.embedding.value.begin() + character * kEmbedding;
    act.x.insert(act.x.end(), vector, vector + kEmbedding);
  }

  act.h.clear();
  for (int r = 0; r < rows; ++r)
    act.h.insert(act.h.end(), model.hidden_bias.value.begin(), model.hidden_bias.value.end());
  multiply(act.h.data(), act.x.data(), model.hidden.value.data(), rows, kInput, kHidden);
  for (float& h : act.h) h = std::tanh(h);

  act.probabilities.clear();
  for (int r = 0; r < rows; ++r)
    act.probabilities.insert(act.probabilities.end(), model.head_bias.value.begin(), model.head_bias.value.end());
  multiply(act.probabilities.data(), act.h.data(), model.head.value.data(), rows, kHidden, v);

  double loss = 0;
  for (int r = 0; r < rows; ++r)
    loss += softmax(&act.probabilities[static_cast<size_t>(r * v)], v, batch.target[static_cast<size_t>(r)]);
  return loss;
}

void backward(Model& model, const Batch& batch, const Activations& act, const std::function<void(int)>& ready) {
  const int rows = rows_of(batch);
  const int v = model.vocabulary;
  for (Parameter* p : model.parameters()) std::fill(p->grad.begin(), p->grad.end(), 0.0F);

  // d_logits = probabilities - one-hot target
  std::vector<float> d_logits = act.probabilities;
  for (int r = 0; r < rows; ++r) d_logits[static_cast<size_t>(r * v + batch.target[static_cast<size_t>(r)])] -= 1;
  add_rows(model.head_bias.grad.data(), d_logits.data(), rows, v);
  ready(4);
  multiply_backward_weight(model.head.grad.data(), act.h.data(), d_logits.data(), rows, kHidden, v);
  ready(3);

  // through tanh: d_pre = d_h * (1 - h * h)
  std::vector<float> d_pre(act.h.size());
  multiply_backward_input(d_pre.data(), d_logits.data(), model.head.value.data(), rows, kHidden, v);
  for (size_t i = 0; i < d_pre.size(); ++i) d_pre[i] *= 1 - act.h[i] * act.h[i];
  add_rows(model.hidden_bias.grad.data(), d_pre.data(), rows, kHidden);
  ready(2);
  multiply_backward_weight(model.hidden.grad.data(), act.x.data(), d_pre.data(), rows, kInput, kHidden);
  ready(1);

  // into the embedding: every use of a character adds to its vector
  std::vector<float> d_x(act.x.size());
  multiply_backward_input(d_x.data(), d_pre.data(), model.hidden.value.data(), rows, kInput, kHidden);
  for (size_t use = 0; use < batch.context.size(); ++use)
    for (int e = 0; e < kEmbedding; ++e)
      model.embedding.grad[static_cast<size_t>(batch.context[use] * kEmbedding + e)] +=
          d_x[use * kEmbedding + static_cast<size_t>(e)];
  ready(0);
}

void adam(Model& model, int step, float learning_rate, float scale) {
  constexpr float beta1 = 0.9F, beta2 = 0.99F, epsilon = 1e-8F;
  const float correct1 = 1 - std::pow(beta1, static_cast<float>(step));
  const float correct2 = 1 - std::pow(beta2, static_cast<float>(step));
  for (Parameter* p : model.parameters())
    for (size_t i = 0; i < p->value.size(); ++i) {
      const float g = p->grad[i] * scale;
      p->momentum[i] = beta1 * p->momentum[i] + (1 - beta1) * g;
      p->variance[i] = beta2 * p->variance[i] + (1 - beta2) * g * g;
      p->value[i] -= learning_rate * (p->momentum[i] / correct1) / (std::sqrt(p->variance[i] / correct2) + epsilon);
    }
}

}  // namespace demo
