// SPDX-License-Identifier: MIT

#include "reference/train/run/loop.h"

#include <lockstep.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>

#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/context.h"
#include "reference/train/parallel/model_gradients.h"
#include "reference/train/parallel/pieces.h"
#include "reference/train/run/build.h"
#include "reference/train/run/weights.h"

namespace train {
namespace {

std::vector<std::vector<int64_t>> split_places(const Options& o) {
  std::vector<std::vector<int64_t>> all;
  for (int cp = 0; cp < o.shape.cp && o.shape.cp > 1; ++cp) all.push_back(context_places(o.seq, cp, o.shape.cp));
  return all;
}
std::vector<int64_t> places_of(const Options& o, const Place& place) {
  if (o.shape.cp > 1) return context_places(o.seq, place.cp, o.shape.cp);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < o.seq; ++i) places.push_back(i);
  return places;
}

// The sign of a NaN says nothing.
double shown(double x) { return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x; }

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
      comms_(make_communicators(id, rank, mesh_, options.hybrid_shard, options.kv_heads)),
      memory_(device),
      exchange_(memory_, options.overlap),
      config_(config_of(options)),
      sampler_(options.seed, text.samples()),
      dumps_(options_, comms_, place_, rank, compute_),
      loss_scale_(options.loss_scale, options.loss_scale_growth) {
  comms_.groups.sequence = options.sequence_parallel;
  comms_.groups.exchange = &exchange_;
  comms_.groups.context = options.cp_algo == "ulysses"     ? ContextWay::ulysses
                          : options.cp_algo == "allgather" ? ContextWay::all_gather
                                                           : ContextWay::ring;
  make_model();
  strategy_ =
      make_strategy({options_, comms_, *model_, compute_, memory_, initial_values(options.init, config_, compute_)});
  batches_ = std::make_unique<Batches>(
      memory_, BatchShape{static_cast<int>(options.accum), options.micro_batch, places_of(options, place_),
                          split_places(options), place_.dp, options.shape.dp, options.seed, options.mask_fraction});
  optimizer_ = std::make_unique<Optimizer>(options_, memory_, compute_, options.shape.ep > 1 ? alone_ : comms_.model);
  make_pipeline();
  statistics_ = memory_.allocate(Purpose::workspace, Dtype::f64, 2);
  check(cudaMallocHost(reinterpret_cast<void**>(&told_), statistics_.bytes()), "cudaMallocHost");
  compute_.synchronize();
}

Training::~Training() {
  compute_.synchronize();
  cudaFreeHost(told_);
}

void Training::make_model() {
  std::vector<int> held;
  for (const std::vector<int>& chunk :
       modules_of_stage(options_.layers, place_.pp, options_.shape.pp, options_.virtual_stages)) {
    const auto begin = static_cast<int>(held.size());
    held.insert(held.end(), chunk.begin(), chunk.end());
    chunks_.push_back({begin, static_cast<int>(held.size())});
  }
  model_ = std::make_unique<Model>(config_, comms_.groups, compute_, memory_, held);
}

// One stage is a pipeline too, without messages.
void Training::make_pipeline() {
  const int64_t rows = options_.micro_batch * options_.seq / options_.shape.cp;
  const int64_t elements = rows / (options_.sequence_parallel ? options_.shape.tp : 1) * options_.width;
  FakeCompute fake;
  if (!options_.fake_compute_us.empty())
    fake = {options_.fake_compute_us[0], options_.fake_compute_us[1], options_.fake_compute_us[2]};
  pipeline_ = std::make_unique<Pipeline>(
      make_schedule(options_.schedule, options_.shape.pp, static_cast<int>(options_.accum), options_.virtual_stages),
      comms_.pp, compute_, memory_, options_.dtype, elements, fake);
  if (options_.eval_every > 0 && options_.shape.pp > 1)
    arriving_ = memory_.allocate(Purpose::workspace, options_.dtype, elements);
}

void Training::passes() {
  strategy_->begin_step(static_cast<int>(options_.accum));
  model_->begin_step(static_cast<int>(options_.accum), loss_scale_.value());
  const auto chunk = [this](int c) { return chunks_[static_cast<size_t>(c)]; };
  pipeline_->run({[&](int slot, int k, int c, View x) {
                    lockstep_phase("forward");
                    if (c == 0) strategy_->begin_micro_batch(k);
                    return model_->forward(*strategy_, chunk(c), slot, k, (*batches_)[k], x);
                  },
                  [&](int slot, int k, int c, View grad) {
                    lockstep_phase("backward");
                    return model_->backward(*strategy_, chunk(c), slot, k, (*batches_)[k], grad);
                  },
                  [&](int slot, int k, int c, View grad) {
                    lockstep_phase("backward");
                    return model_->backward_input(*strategy_, chunk(c), slot, k, (*batches_)[k], grad);
                  },
                  [&](int slot, int k, int c) {
                    lockstep_phase("backward");
                    model_->backward_weight(*strategy_, chunk(c), slot, k, (*batches_)[k]);
                  }});
}

// The sum of losses and the number of tokens, over micro-batches and then over ranks: one small all-reduce. The last
// stage of a pipeline alone has losses.
void Training::sum_statistics() {
  const View loss = statistics_.part(0, 1), tokens = statistics_.part(1, 1);
  fill(compute_.get(), loss, 0);
  for (int k = 0; k < static_cast<int>(options_.accum); ++k)
    add_to(compute_.get(), loss, model_->losses().part(k, 1), 1);
  fill(compute_.get(), tokens, static_cast<double>(batches_->targets()));
  comms_.data.all_reduce(statistics_, ncclSum, compute_);
  comms_.pp.all_reduce(statistics_.part(0, 1), ncclSum, compute_);
  check(cudaMemcpyAsync(told_, statistics_.data, statistics_.bytes(), cudaMemcpyDeviceToHost, compute_.get()),
        "cudaMemcpyAsync");
  compute_.synchronize();
}

Training::Step Training::step() {
  Step step{++steps_done_, 0, 0, 0, 0, loss_scale_.value()};
  batches_->load(text_, sampler_, compute_);
  lockstep_step(static_cast<uint64_t>(step.number));
  const std::string part = options_.shape.cp > 1 ? ":part" + std::to_string(place_.cp) : "";  // ranks share sequences
  lockstep_sample_id((batches_->last_sample() + part).c_str());
  const bool dump = dumps_.wants(step.number);
  if (dump) dumps_.begin_step(step.number);
  model_->watch(dump ? dumps_.watcher() : nullptr);
  passes();
  model_->watch(nullptr);
  strategy_->finish_gradients();
  finish_model_gradients(strategy_->owned(), comms_.groups, compute_);
  sum_statistics();
  step.tokens = std::llround(told_[1]);
  step.loss = step.tokens > 0 ? told_[0] / told_[1] : 0;

  lockstep_phase("optimizer");
  const double tokens = std::max(told_[1], 1.0);
  step.norm = optimizer_->finish_gradients(*strategy_, tokens * step.loss_scale);
  step.rate = rate_at(options_, step.number);
  if (dump) {
    dumps_.gradients(*strategy_);
    dumps_.batch(*batches_);
  }
  optimizer_->update(*strategy_, step.norm, step.rate);
  strategy_->finish_update();
  compute_.synchronize();
  loss_scale_.finish_step(std::isfinite(step.norm));
  sampler_.advance(options_.global_batch);
  if (dump) {
    dumps_.parameters(*strategy_, model_->parameters());
    dumps_.end_step({step.number, rank_, step.loss, step.tokens, step.norm, step.rate, step.loss_scale}, state());
  }
  return step;
}

// Pieces of the model in their order, one after another.
void Training::evaluate_batch(int k) {
  const int stages = options_.shape.pp, chunks = options_.virtual_stages;
  for (int c = 0; c < chunks; ++c) {
    const bool begins = place_.pp == 0 && c == 0, ends = place_.pp == stages - 1 && c == chunks - 1;
    if (!begins) comms_.pp.receive(arriving_, (place_.pp + stages - 1) % stages, compute_);
    const View x = model_->evaluate(chunks_[static_cast<size_t>(c)], (*batches_)[k], begins ? View{} : arriving_,
                                    statistics_.part(0, 1));
    if (!ends) comms_.pp.send(x, (place_.pp + 1) % stages, compute_);
  }
}

double Training::evaluate() {
  strategy_->gather_all();
  fill(compute_.get(), statistics_, 0);
  double tokens = 0;
  for (int64_t done = 0; done < options_.eval_batches && done * options_.global_batch < text_.held_out(); ++done) {
    batches_->load_held_out(text_, done * options_.accum * options_.shape.dp, compute_);
    for (int k = 0; k < batches_->size(); ++k) evaluate_batch(k);
    compute_.synchronize();  // the next batches are written where these were read
    tokens += static_cast<double>(batches_->targets());
  }
  fill(compute_.get(), statistics_.part(1, 1), tokens);
  comms_.data.all_reduce(statistics_, ncclSum, compute_);
  comms_.pp.all_reduce(statistics_.part(0, 1), ncclSum, compute_);
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
  dumps_.end_step({0, rank_, {}, {}, {}, {}, {}}, state());
}

TrainingState Training::state() const {
  return {steps_done_, optimizer_->updates(), sampler_.state(), loss_scale_.state()};
}

void Training::restore(const TrainingState& state) {
  const SamplerState& mine = sampler_.state();
  if (state.sampler.seed != mine.seed)
    refuse("the state is of a training with seed = ", state.sampler.seed, ", and this one's is ", mine.seed);
  if (state.sampler.samples != mine.samples)
    refuse("the state is of a text of ", state.sampler.samples, " samples to train on, and this one has ", mine.samples,
           ": take the same --data, --seq and --packed");
  steps_done_ = state.step;
  optimizer_->restore(state.updates);
  sampler_.restore(state.sampler);
  loss_scale_.restore(state.loss_scale);
}

void Training::tell(const Step& step, double seconds) const {
  std::printf("step %lld  loss %.6f  norm %.4f  lr %.3g  %.0f tokens/s\n", static_cast<long long>(step.number),
              shown(step.loss), shown(step.norm), step.rate,
              static_cast<double>(options_.global_batch * options_.seq) / std::max(seconds, 1e-9));
  std::fflush(stdout);
}

void Training::tell_not_finite(const Step& step) const {
  const auto n = static_cast<long long>(step.number);
  if (step.loss_scale > 1)
    std::printf("step %lld  gradients overflow: nothing was updated; loss scale is now %g\n", n, loss_scale_.value());
  else
    std::printf("step %lld  the gradient's norm is not a number: nothing was updated\n", n);
}

void Training::tell_loss_scale(const Step& step) const {
  std::printf("step %lld  loss scale is now %g\n", static_cast<long long>(step.number), loss_scale_.value());
}

void Training::run() {
  const bool talks = rank_ == 0;
  dump_first();
  while (steps_done_ < options_.steps) {
    const auto begin = std::chrono::steady_clock::now();
    const Step done = step();
    const int64_t n = done.number;
    if (talks && !options_.quiet) tell(done, seconds_since(begin));
    if (talks && !std::isfinite(done.norm)) tell_not_finite(done);
    if (talks && !options_.quiet && loss_scale_.value() > done.loss_scale) tell_loss_scale(done);
    if (options_.eval_every > 0 && n % options_.eval_every == 0) {
      const double loss = evaluate();
      if (talks) std::printf("step %lld  held-out loss %.6f\n", static_cast<long long>(n), shown(loss));
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
