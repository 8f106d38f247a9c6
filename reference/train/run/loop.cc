// SPDX-License-Identifier: MIT

#include "reference/train/run/loop.h"

#include <lockstep.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/context.h"
#include "reference/train/run/build.h"
#include "reference/train/run/weights.h"

namespace train {
namespace {

std::vector<int64_t> places_of(const Options& o, const Place& place) {
  if (o.shape.cp > 1) return context_places(o.seq, place.cp, o.shape.cp);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < o.seq; ++i) places.push_back(i);
  return places;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Training::Training(const Options& options, const Text& text, int rank, int device, const ncclUniqueId& id)
    : options_(options),
      text_(text),
      mesh_(options.shape),
      rank_(rank),
      place_(mesh_.place(rank)),
      comms_(make_communicators(id, rank, mesh_, options.hybrid_shard)),
      memory_(device),
      exchange_(memory_),
      config_(config_of(options)),
      sampler_(options.seed, text.samples()),
      dumps_(options_, comms_, place_, rank, compute_),
      loss_scale_(options.loss_scale) {
  comms_.groups.sequence = options.sequence_parallel;
  comms_.groups.exchange = &exchange_;
  comms_.groups.context = options.cp_algo == "ulysses"     ? ContextWay::ulysses
                          : options.cp_algo == "allgather" ? ContextWay::all_gather
                                                           : ContextWay::ring;
  model_ = std::make_unique<Model>(config_, comms_.groups, compute_, memory_);
  strategy_ = make_strategy(
      {options_, comms_, *model_, compute_, memory_, initial_values(options.init, config_, compute_)});
  batches_ = std::make_unique<Batches>(
      memory_, BatchShape{static_cast<int>(options.accum), options.micro_batch, places_of(options, place_), place_.dp,
                          options.shape.dp, options.seed, options.mask_fraction});
  optimizer_ = std::make_unique<Optimizer>(options_, memory_, compute_, comms_.model, comms_.groups.tp);
  for (const Owned& piece : strategy_->owned())
    if (piece.parameter->partial_over_tp) summed_over_tp_.push_back(piece.grad);
  statistics_ = memory_.allocate(Purpose::workspace, Dtype::f64, 2);
  check(cudaMallocHost(reinterpret_cast<void**>(&told_), statistics_.bytes()), "cudaMallocHost");
  compute_.synchronize();
}

Training::~Training() {
  compute_.synchronize();
  cudaFreeHost(told_);
}

void Training::passes() {
  strategy_->begin_step(static_cast<int>(options_.accum));
  model_->begin_step(static_cast<int>(options_.accum), loss_scale_);
  for (int k = 0; k < static_cast<int>(options_.accum); ++k) {
    strategy_->begin_micro_batch(k);
    lockstep_phase("forward");
    model_->forward(*strategy_, model_->all(), 0, k, (*batches_)[k], {});
    lockstep_phase("backward");
    model_->backward(*strategy_, model_->all(), 0, k, (*batches_)[k], {});
  }
}

// Gradients that are partial sums over tensor-parallel ranks, under sequence parallelism (2205.05198, section 4.2.2):
// norms and row biases see a part of the rows. Once a step, and only on what this rank owns.
void Training::sum_over_tensor_parallel() {
  if (summed_over_tp_.empty() || comms_.groups.tp.size() == 1) return;
  const Group group;
  for (const View& view : summed_over_tp_) comms_.groups.tp.all_reduce(view, ncclSum, compute_);
}

// The sum of losses and the number of tokens, over micro-batches and then over ranks: one small all-reduce.
void Training::sum_statistics() {
  const View loss = statistics_.part(0, 1), tokens = statistics_.part(1, 1);
  fill(compute_.get(), loss, 0);
  for (int k = 0; k < static_cast<int>(options_.accum); ++k)
    add_to(compute_.get(), loss, model_->losses().part(k, 1), 1);
  fill(compute_.get(), tokens, static_cast<double>(batches_->targets()));
  comms_.data.all_reduce(statistics_, ncclSum, compute_);
  check(cudaMemcpyAsync(told_, statistics_.data, statistics_.bytes(), cudaMemcpyDeviceToHost, compute_.get()),
        "cudaMemcpyAsync");
  compute_.synchronize();
}

Training::Step Training::step() {
  Step step{++steps_done_, 0, 0, 0, 0, loss_scale_};
  batches_->load(text_, sampler_, compute_);
  lockstep_step(static_cast<uint64_t>(step.number));
  lockstep_sample_id(batches_->last_sample().c_str());
  passes();
  strategy_->finish_gradients();
  sum_over_tensor_parallel();
  sum_statistics();
  step.tokens = std::llround(told_[1]);
  step.loss = step.tokens > 0 ? told_[0] / told_[1] : 0;

  lockstep_phase("optimizer");
  const double tokens = std::max(told_[1], 1.0);
  step.norm = optimizer_->finish_gradients(*strategy_, tokens * loss_scale_);
  step.rate = rate_at(options_, step.number);
  const bool dump = dumps_.wants(step.number);
  if (dump) {
    dumps_.begin_step(step.number);
    dumps_.gradients(*strategy_);
    dumps_.batch(*batches_);
  }
  optimizer_->update(*strategy_, step.norm, step.number);
  strategy_->finish_update();
  compute_.synchronize();
  if (!std::isfinite(step.norm)) loss_scale_ = std::max(loss_scale_ / 2, 1.0);
  sampler_.advance(options_.global_batch);
  if (dump) {
    dumps_.parameters(*strategy_, model_->parameters());
    dumps_.end_step({step.number, rank_, step.loss, step.tokens, step.norm, step.rate, step.loss_scale});
  }
  return step;
}

double Training::evaluate() {
  strategy_->gather_all();
  fill(compute_.get(), statistics_, 0);
  const int per_pass = static_cast<int>(options_.accum);
  double tokens = 0;
  for (int64_t done = 0; done < options_.eval_batches; done += per_pass) {
    batches_->load_held_out(text_, done * options_.shape.dp, compute_);
    for (int k = 0; k < per_pass && done + k < options_.eval_batches; ++k)
      model_->evaluate(model_->all(), (*batches_)[k], {}, statistics_.part(0, 1));
    compute_.synchronize();  // the next batches are written where these were read
    tokens += static_cast<double>(batches_->targets());
  }
  fill(compute_.get(), statistics_.part(1, 1), tokens);
  comms_.data.all_reduce(statistics_, ncclSum, compute_);
  check(cudaMemcpyAsync(told_, statistics_.data, statistics_.bytes(), cudaMemcpyDeviceToHost, compute_.get()),
        "cudaMemcpyAsync");
  compute_.synchronize();
  strategy_->release_all();
  return told_[0] / std::max(told_[1], 1.0);
}

void Training::dump_first() {
  if (!dumps_.wants(0)) return;
  dumps_.begin_step(0);
  dumps_.parameters(*strategy_, model_->parameters());
  dumps_.end_step({0, rank_, {}, {}, {}, {}, {}});
}

void Training::tell(const Step& step, double seconds) const {
  std::printf("step %lld  loss %.6f  norm %.4f  lr %.3g  %.0f tokens/s\n", static_cast<long long>(step.number),
              step.loss, step.norm, step.rate,
              static_cast<double>(options_.global_batch * options_.seq) / std::max(seconds, 1e-9));
  std::fflush(stdout);
}

void Training::run() {
  const bool talks = rank_ == 0;
  dump_first();
  for (int64_t n = 1; n <= options_.steps; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    const Step done = step();
    if (talks && !options_.quiet) tell(done, seconds_since(begin));
    if (talks && !std::isfinite(done.norm))
      std::printf("step %lld  gradients overflow: nothing was updated; loss scale is now %g\n",
                  static_cast<long long>(n), loss_scale_);
    if (options_.eval_every > 0 && n % options_.eval_every == 0) {
      const double loss = evaluate();
      if (talks) std::printf("step %lld  held-out loss %.6f\n", static_cast<long long>(n), loss);
    }
    if (talks) std::fflush(stdout);
  }
  if (talks && options_.memory) std::fputs(memory_table(memory_).c_str(), stdout);
}

std::string memory_table(const Memory& memory) {
  std::string text = "memory of rank 0, most bytes at once\n";
  for (int i = 0; i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    char line[64];
    std::snprintf(line, sizeof line, "  %-12s %14zu\n", std::string(name_of(purpose)).c_str(), memory.high(purpose));
    text += line;
  }
  return text;
}

}  // namespace train
