// SPDX-License-Identifier: MIT

#include "reference/train/run/optimizer.h"

#include <cmath>
#include <numbers>

#include "reference/train/kernels/kernels.h"

namespace train {
namespace {

struct Pair {
  double high, low;
};

// Double-double addition (Knuth's two-sum; Dekker 1971).
Pair plus(Pair a, Pair b) {
  const double sum = a.high + b.high, back = sum - a.high;
  const double error = (a.high - (sum - back)) + (b.high - back);
  const double low = error + (a.low + b.low);
  return {sum + low, low - ((sum + low) - sum)};
}

}  // namespace

double rate_at(const Options& o, int64_t step) {
  if (step <= o.warmup) return o.lr * static_cast<double>(step) / static_cast<double>(o.warmup);
  if (o.decay_steps <= o.warmup) return o.lr;
  if (step >= o.decay_steps) return o.min_lr;
  const double part = static_cast<double>(step - o.warmup) / static_cast<double>(o.decay_steps - o.warmup);
  return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

Optimizer::Optimizer(const Options& options, Memory& memory, const Stream& compute, const Comm& model)
    : options_(options), memory_(memory), compute_(compute), model_(model) {
  mine_ = memory.allocate(Purpose::workspace, Dtype::f64, 2);
}

Optimizer::~Optimizer() { cudaFreeHost(host_); }

double Optimizer::finish_gradients(Strategy& strategy, double divisor) {
  fill(compute_.get(), mine_, 0);
  for (const Owned& piece : strategy.owned()) {
    divide(compute_.get(), piece.grad, divisor);
    if (!piece.counts) continue;
    for (const auto& [begin, end] : overlap(piece.begin, piece.count, piece.parameter->elsewhere, true))
      add_squares(compute_.get(), mine_, piece.grad.part(begin, end - begin));
  }
  // Plain data parallelism and one rank need no call: every rank has everything.
  const int64_t owners = 2 * strategy.owners().size(), all = owners * model_.size();
  if (!all_) {
    owners_ = memory_.allocate(Purpose::workspace, Dtype::f64, owners);
    all_ = memory_.allocate(Purpose::workspace, Dtype::f64, all);
    check(cudaMallocHost(reinterpret_cast<void**>(&host_), all_.bytes()), "cudaMallocHost");
  }
  strategy.owners().all_gather(mine_, owners_, compute_);
  model_.all_gather(owners_, all_, compute_);
  check(cudaMemcpyAsync(host_, all_.data, all_.bytes(), cudaMemcpyDeviceToHost, compute_.get()), "cudaMemcpyAsync");
  compute_.synchronize();
  Pair sum{0, 0};
  for (int64_t i = 0; i < all; i += 2) sum = plus(sum, {host_[i], host_[i + 1]});
  return std::sqrt(sum.high);
}

void Optimizer::update(Strategy& strategy, double norm, double rate) {
  if (!std::isfinite(norm)) return;
  ++updates_;
  const double factor = options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1;
  for (const Owned& piece : strategy.owned()) {
    const double decay = piece.parameter->decay ? options_.weight_decay : 0;
    if (options_.optimizer == "sgd")
      sgd(compute_.get(), piece.value, piece.master, piece.first, piece.grad, factor, {rate, options_.momentum, decay});
    else
      adamw(compute_.get(), piece.value, piece.master, piece.first, piece.second, piece.grad, factor,
            {rate, options_.beta1, options_.beta2, options_.eps, decay, updates_});
  }
}

}  // namespace train
