// SPDX-License-Identifier: MIT

#include "tests/train/model/harness.h"

#include <algorithm>
#include <cstring>

namespace train::test {

Experiment small(const std::string& name, void (*change)(Experiment&)) {
  Experiment setup;
  setup.name = name;
  setup.config.layers = 2;
  setup.config.heads = 4;
  setup.config.width = 16;
  setup.config.vocab = 11;
  setup.config.seq = 12;
  setup.config.dtype = Dtype::f64;
  change(setup);
  return setup;
}

Rig::Rig(const Experiment& setup, std::vector<int> held) : setup_(setup) {
  EXPECT_EQ(config_error(setup.config), "");
  model_ = held.empty() ? std::make_unique<Model>(setup.config, groups_, stream_, memory_)
                        : std::make_unique<Model>(setup.config, groups_, stream_, memory_, std::move(held));
  strategy_ = std::make_unique<Whole>(*model_, memory_, stream_);
  std::mt19937_64 random(7);
  for (Parameter* p : model_->parameters()) {
    std::mt19937_64 own(static_cast<uint64_t>(p->index));  // the same, whatever else this rank has
    std::normal_distribution<double> normal;
    Values values = get(p->value);
    for (int64_t i = 0; i < real_elements(*p); ++i)
      values[static_cast<size_t>(i)] = (p->init == Parameter::Init::ones ? 1 : 0) + 0.3 * normal(own);
    put(p->value, values);
  }
  for (int k = 0; k < setup.micro_batches; ++k) {
    host_.push_back(make_batch(random, k * setup.sequences + 5));
    batches_.push_back(upload(host_.back()));
  }
  evaluated_ = memory_.allocate(Purpose::workspace, Dtype::f64, 1);
}

int64_t Rig::real_elements(const Parameter& p) {
  int64_t count = 1;
  for (const int64_t n : p.global) count *= n;
  return std::min(count, p.count);
}

// Documents end at random places; positions count from their beginning, the order through the whole sequence.
HostBatch Rig::make_batch(std::mt19937_64& random, int64_t first_sample) const {
  HostBatch b;
  b.sequences = setup_.sequences;
  b.length = setup_.config.seq;
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
  for (int64_t s = 0; s < b.sequences; ++s) {
    int32_t document = 0, position = 0;
    for (int32_t i = 0; i < b.length; ++i) {
      if (setup_.packed && i > 0 && below(4) == 0) {
        ++document;
        position = 0;
      }
      b.tokens.push_back(below(setup_.config.vocab));
      b.targets.push_back(setup_.masked && below(3) == 0 ? -1 : below(setup_.config.vocab));
      b.positions.push_back(position++);
      b.documents.push_back(document);
      b.order.push_back(i);
      b.samples.push_back(first_sample + s);
    }
  }
  return b;
}

template <class T>
const T* Rig::upload(const std::vector<T>& values) {
  auto* to = static_cast<T*>(memory_.allocate_bytes(Purpose::workspace, values.size() * sizeof(T)));
  check(cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return to;
}

Batch Rig::upload(const HostBatch& from) {
  Batch b;
  b.sequences = from.sequences;
  b.length = from.length;
  b.tokens = upload(from.tokens);
  b.targets = upload(from.targets);
  b.positions = upload(from.positions);
  b.documents = upload(from.documents);
  b.order = upload(from.order);
  b.samples = upload(from.samples);
  return b;
}

void Rig::begin_step() {
  strategy_->begin_step(setup_.micro_batches);
  model_->begin_step(setup_.micro_batches, setup_.loss_scale);
}

double Rig::step(bool split) {
  begin_step();
  for (int k = 0; k < setup_.micro_batches; ++k) {
    const Batch& batch = batches_[static_cast<size_t>(k)];
    strategy_->begin_micro_batch(k);
    model_->forward(*strategy_, model_->all(), 0, k, batch, {});
    if (split) {
      model_->backward_input(*strategy_, model_->all(), 0, k, batch, {});
      model_->backward_weight(*strategy_, model_->all(), 0, k, batch);
    } else {
      model_->backward(*strategy_, model_->all(), 0, k, batch, {});
    }
  }
  double sum = 0;
  for (const double loss : get(model_->losses())) sum += loss;
  return sum;
}

double Rig::evaluate() {
  fill(stream_.get(), evaluated_, 0);
  for (const Batch& batch : batches_) model_->evaluate(model_->all(), batch, {}, evaluated_);
  return get(evaluated_)[0];
}

Values Rig::gradient(const Parameter& parameter) {
  for (const Owned& owned : strategy_->owned())
    if (owned.parameter == &parameter) return get(owned.grad);
  ADD_FAILURE() << parameter.name << " has no gradient";
  return {};
}

std::map<std::string, Values> Rig::gradients() {
  std::map<std::string, Values> all;
  for (const Owned& owned : strategy_->owned()) all[owned.parameter->name] = get(owned.grad);
  return all;
}

Values Rig::get(View view) {
  std::vector<char> bytes(view.bytes());
  stream_.synchronize();
  check(cudaMemcpy(bytes.data(), view.data, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  Values values;
  for (size_t i = 0; i < static_cast<size_t>(view.size); ++i) {
    if (view.dtype == Dtype::f64) {
      double x = 0;
      std::memcpy(&x, &bytes[i * 8], 8);
      values.push_back(x);
      continue;
    }
    uint32_t bits = 0;  // bf16 is the upper half of an fp32
    if (view.dtype == Dtype::f32)
      std::memcpy(&bits, &bytes[i * 4], 4);
    else
      std::memcpy(reinterpret_cast<char*>(&bits) + 2, &bytes[i * 2], 2);
    float x = 0;
    std::memcpy(&x, &bits, 4);
    values.push_back(static_cast<double>(x));
  }
  return values;
}

void Rig::put(View view, const Values& values) {
  ASSERT_EQ(static_cast<size_t>(view.size), values.size());
  std::vector<char> bytes(view.bytes());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<float>(values[i]);
    if (view.dtype == Dtype::f64)
      std::memcpy(&bytes[i * 8], &values[i], 8);
    else if (view.dtype == Dtype::f32)
      std::memcpy(&bytes[i * 4], &narrow, 4);
    else
      std::memcpy(&bytes[i * 2], reinterpret_cast<const char*>(&narrow) + 2, 2);
  }
  stream_.synchronize();
  check(cudaMemcpy(view.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
}

}  // namespace train::test
