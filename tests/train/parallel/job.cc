// SPDX-License-Identifier: MIT

#include "tests/train/parallel/job.h"

#include <cmath>
#include <mutex>

#include "reference/train/kernels/kernels.h"
#include "reference/train/model/model.h"
#include "reference/train/parallel/compress.h"
#include "reference/train/parallel/context.h"
#include "reference/train/parallel/data.h"
#include "reference/train/parallel/exchange.h"
#include "reference/train/parallel/fsdp.h"
#include "reference/train/parallel/model_gradients.h"
#include "reference/train/parallel/pieces.h"
#include "reference/train/parallel/pipeline.h"
#include "reference/train/parallel/tied.h"
#include "reference/train/parallel/two_sums.h"
#include "reference/train/parallel/zero.h"
#include "reference/train/run/communicators.h"
#include "reference/train/run/optimizer.h"
#include "tests/train/parallel/ranks.h"

namespace train {

namespace {

// What stands at a place of a sequence: functions of its number, the same for whoever asks.
struct Text {
  int vocab;
  int32_t token(int64_t sequence, int64_t place) const {
    uint64_t x = static_cast<uint64_t>(sequence * 1000 + place + 1) * 0x9e3779b97f4a7c15;  // as splitmix64 mixes
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    return static_cast<int32_t>((x ^ x >> 32) % static_cast<uint64_t>(vocab));
  }
  static int64_t border(int64_t sequence) { return sequence % 3 == 0 ? kLength : 3 + sequence % 7; }
  int32_t target(int64_t sequence, int64_t place) const {
    const bool masked =
        place == kLength - 1 || place + 1 == border(sequence) || (sequence + place * 5) % (3 + sequence % 4) == 0;
    return masked ? -1 : token(sequence, place + 1);
  }
  static int32_t document(int64_t sequence, int64_t place) { return place >= border(sequence) ? 1 : 0; }
  static int32_t position(int64_t sequence, int64_t place) {
    return static_cast<int32_t>(place >= border(sequence) ? place - border(sequence) : place);
  }
};

Options optimizer_options() {
  Options options;
  options.clip = 0.5;  // less than the norms are
  options.weight_decay = 0.1;
  options.eps = 1e-4;
  return options;
}

struct Shared {
  std::mutex mutex;
  Outcome outcome;
  std::vector<double> losses;
};

class Rank {
 public:
  Rank(const Job& job, const Layout& layout, const ncclUniqueId& id, int rank, Shared& shared)
      : job_(job),
        layout_(layout),
        mesh_(layout.shape),
        place_(mesh_.place(rank)),
        shared_(shared),
        memory_(rank),
        exchange_(memory_),
        comms_(make_communicators(id, rank, mesh_, 0, job.config.kv_heads)) {
    groups_.sequence = layout.sequence;
    groups_.context = layout.context;
    groups_.exchange = &exchange_;
    make_model();
    make_strategy();
    optimizer_ = std::make_unique<Optimizer>(options_, memory_, stream_, layout.shape.ep > 1 ? alone_ : comms_.model);
    const int64_t rows = sequences() * length() / (layout.sequence ? layout.shape.tp : 1);
    pipeline_ =
        std::make_unique<Pipeline>(make_schedule(layout.schedule, layout.shape.pp, layout.micro_batches, layout.chunks),
                                   comms_.pp, stream_, memory_, job.config.dtype, rows * job.config.width);
  }

  void run() {
    for (int step = 0; step < job_.steps; ++step) {
      make_batches(step);
      strategy_->begin_step(layout_.micro_batches);
      model_->begin_step(layout_.micro_batches);
      pipeline_->run(passes());
      strategy_->finish_gradients();
      finish_model_gradients(strategy_->owned(), groups_, stream_);
      tell_loss(step);
      const double norm = optimizer_->finish_gradients(*strategy_, static_cast<double>(tokens_));
      tell_norm(step, norm);
      for (const Owned& piece : strategy_->owned())
        if (step == 0) tell(piece, piece.grad, shared_.outcome.gradients);
      optimizer_->update(*strategy_, norm, 1e-2);
      strategy_->finish_update();
    }
    strategy_->gather_all();
    for (Parameter* p : model_->parameters())
      tell({p, 0, p->count, {}, {}, {}, {}, {}}, p->value, shared_.outcome.parameters);
    strategy_->release_all();
    stream_.synchronize();
    const std::lock_guard lock(shared_.mutex);
    shared_.outcome.activation_bytes = std::max(shared_.outcome.activation_bytes, model_->activation_bytes());
  }

 private:
  int64_t sequences() const { return kSequences / layout_.shape.dp / layout_.micro_batches; }
  int64_t length() const { return kLength / layout_.shape.cp; }

  void make_model() {
    std::vector<int> held;
    int begin = 0;
    for (const std::vector<int>& chunk :
         modules_of_stage(static_cast<int>(job_.config.layers), place_.pp, layout_.shape.pp, layout_.chunks)) {
      held.insert(held.end(), chunk.begin(), chunk.end());
      chunks_.push_back({begin, static_cast<int>(held.size())});
      begin = static_cast<int>(held.size());
    }
    model_ = std::make_unique<Model>(job_.config, groups_, stream_, memory_, held);
  }

  void make_strategy() {
    Setup setup{{},
                {},
                comms_.data,
                stream_,
                memory_,
                job_.config.dtype,
                layout_.micro_batches,
                true,
                true,
                [this](const Parameter& p, View into) { initialise(stream_.get(), job_.config, p, into); }};
    for (const auto& module : model_->modules()) setup.modules.push_back(module.get());
    setup.parameters = model_->parameters();
    const auto make = [this](const Setup& s) -> std::unique_ptr<Strategy> {
      const double bucket = 4000;
      const bool pipelined = layout_.shape.pp > 1;
      if (layout_.shard == "zero1") return make_zero1(s, bucket);
      if (layout_.shard == "zero2") return make_zero2(s, bucket, pipelined);
      if (layout_.shard == "full") return make_full(s, pipelined);
      return make_data_parallel(s, bucket, nullptr);
    };
    if (layout_.shape.ep == 1) {
      strategy_ = make_dense(setup, make);
      return;
    }
    Setup experts{setup.modules,       {},   comms_.experts, stream_,      memory_, setup.dtype,
                  setup.micro_batches, true, true,           setup.initial};
    setup.parameters.clear();
    for (Parameter* p : model_->parameters()) (p->expert ? experts : setup).parameters.push_back(p);
    strategy_ = make_two_sums(make_dense(setup, make), make(experts), comms_.world, comms_.data.rank() == 0,
                              comms_.experts.rank() == 0);
  }
  std::unique_ptr<Strategy> make_dense(const Setup& setup,
                                       const std::function<std::unique_ptr<Strategy>(const Setup&)>& make) {
    for (Parameter* p : setup.parameters)
      if (comms_.ends.size() > 1 && job_.config.tied && p->name == "transformer.wte.weight") {
        if (place_.pp > 0) p->elsewhere = {{0, p->count}};
        return tie_ends(setup, *p, comms_.ends, make);
      }
    return make(setup);
  }
  static std::unique_ptr<Strategy> make_full(const Setup& setup, bool pipelined);

  void make_batches(int step) {
    stream_.synchronize();
    const Text text{static_cast<int>(job_.config.vocab)};
    batches_.clear();
    for (int k = 0; k < layout_.micro_batches; ++k) {
      Arrays own, all;
      const int64_t first = step * kSequences + (k * layout_.shape.dp + place_.dp) * sequences();
      for (int cp = 0; cp < layout_.shape.cp; ++cp) {
        Arrays part;
        for (int64_t s = first; s < first + sequences(); ++s)
          for (const int64_t place : places_of(cp)) part.add(text, s, place);
        all.append(part);
        if (cp == place_.cp) own = part;
      }
      Batch batch;
      batch.sequences = sequences();
      batch.length = length();
      batch.tokens = device_copy(memory_, own.tokens);
      batch.targets = device_copy(memory_, own.targets);
      batch.positions = device_copy(memory_, own.positions);
      batch.documents = device_copy(memory_, own.documents);
      batch.order = device_copy(memory_, own.order);
      batch.samples = device_copy(memory_, own.samples);
      batch.all_documents = device_copy(memory_, all.documents);
      batch.all_order = device_copy(memory_, all.order);
      batches_.push_back(batch);
    }
    tokens_ = 0;
    for (int64_t s = step * kSequences; s < (step + 1) * kSequences; ++s)
      for (int64_t place = 0; place < kLength; ++place) tokens_ += text.target(s, place) >= 0 ? 1 : 0;
  }

  struct Arrays {
    std::vector<int32_t> tokens, targets, positions, documents, order;
    std::vector<int64_t> samples;
    void add(const Text& text, int64_t sequence, int64_t place) {
      tokens.push_back(text.token(sequence, place));
      targets.push_back(text.target(sequence, place));
      positions.push_back(Text::position(sequence, place));
      documents.push_back(Text::document(sequence, place));
      order.push_back(static_cast<int32_t>(place));
      samples.push_back(sequence);
    }
    void append(const Arrays& other) {
      documents.insert(documents.end(), other.documents.begin(), other.documents.end());
      order.insert(order.end(), other.order.begin(), other.order.end());
    }
  };
  std::vector<int64_t> places_of(int cp) const {
    if (layout_.shape.cp > 1) return context_places(kLength, cp, layout_.shape.cp);
    std::vector<int64_t> places(kLength);
    std::iota(places.begin(), places.end(), 0);
    return places;
  }

  Passes passes() {
    const auto batch = [this](int k) -> const Batch& { return batches_[static_cast<size_t>(k)]; };
    const auto chunk = [this](int c) { return chunks_[static_cast<size_t>(c)]; };
    return {[=, this](int slot, int k, int c, View x) {
              if (c == 0) strategy_->begin_micro_batch(k);
              return model_->forward(*strategy_, chunk(c), slot, k, batch(k), x);
            },
            [=, this](int slot, int k, int c, View grad) {
              return model_->backward(*strategy_, chunk(c), slot, k, batch(k), grad);
            },
            [=, this](int slot, int k, int c, View grad) {
              return model_->backward_input(*strategy_, chunk(c), slot, k, batch(k), grad);
            },
            [=, this](int slot, int k, int c) { model_->backward_weight(*strategy_, chunk(c), slot, k, batch(k)); }};
  }

  // The last stage has the losses, all tensor-parallel ranks the same ones.
  void tell_loss(int step) {
    const std::vector<double> losses = numbers(stream_, model_->losses());
    if (place_.tp > 0) return;
    const std::lock_guard lock(shared_.mutex);
    shared_.losses.resize(static_cast<size_t>(job_.steps));
    for (const double loss : losses) shared_.losses[static_cast<size_t>(step)] += loss;
  }

  // Every rank has the same one.
  void tell_norm(int step, double norm) {
    const std::lock_guard lock(shared_.mutex);
    std::vector<double>& norms = shared_.outcome.norms;
    if (static_cast<size_t>(step) == norms.size()) norms.push_back(norm);
    EXPECT_EQ(norms[static_cast<size_t>(step)], norm) << layout_.name();
  }

  // Puts what a piece has into the whole tensor; whoever comes second must agree.
  void tell(const Owned& piece, View values, std::map<std::string, std::vector<double>>& tensors) {
    const std::vector<double> host = numbers(stream_, values);
    const Parameter& p = *piece.parameter;
    int64_t whole = 1;
    for (const int64_t n : p.global) whole *= n;
    const std::lock_guard lock(shared_.mutex);
    std::vector<double>& tensor = tensors[p.name];
    if (tensor.empty()) tensor.assign(static_cast<size_t>(whole), std::nan(""));
    for (int64_t i = 0; i < piece.count; ++i) {
      const int64_t at = global_index(p, piece.begin + i);
      if (at < 0) continue;
      double& there = tensor[static_cast<size_t>(at)];
      const double mine = host[static_cast<size_t>(i)];
      if (!std::isnan(there)) {
        EXPECT_NEAR(there, mine, 1e-12 * (1 + std::abs(mine))) << p.name << " " << at << " " << layout_.name();
      }
      there = mine;
    }
  }
  static int64_t global_index(const Parameter& p, int64_t local) {
    if (p.cut.empty()) return local;
    const int64_t columns = p.local.size() > 1 ? p.local[1] : 1, global_columns = p.global.size() > 1 ? p.global[1] : 1;
    int64_t row = local / columns, column = local % columns;
    int64_t& cut = p.cut_dim == 0 ? row : column;
    for (const auto& [begin, end] : p.cut) {
      if (cut < end - begin) {
        cut += begin;
        break;
      }
      cut -= end - begin;
    }
    return row < p.global[0] ? row * global_columns + column : -1;
  }

  const Job& job_;
  const Layout& layout_;
  const Mesh mesh_;
  const Place place_;
  Shared& shared_;
  Memory memory_;
  Stream stream_;
  Exchange exchange_;
  Communicators comms_;
  const Comm alone_;
  Groups& groups_ = comms_.groups;
  std::vector<ModuleRange> chunks_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Strategy> strategy_;
  const Options options_ = optimizer_options();
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<Batch> batches_;
  int64_t tokens_ = 0;
};

std::unique_ptr<Strategy> Rank::make_full(const Setup& setup, bool pipelined) {
  FsdpSettings settings;
  settings.keep_for_step = pipelined;
  return make_fsdp(setup, settings);
}

}  // namespace

Outcome run_job(const Job& job, const Layout& layout) {
  Shared shared;
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.shape.world(); ++rank)
    threads.emplace_back([&, rank] {
      check(cudaSetDevice(rank), "cudaSetDevice");
      Rank(job, layout, id, rank, shared).run();
    });
  for (std::thread& thread : threads) thread.join();
  Outcome& outcome = shared.outcome;
  outcome.losses = shared.losses;
  for (const auto* tensors : {&outcome.gradients, &outcome.parameters})
    for (const auto& [name, values] : *tensors)
      for (const double value : values)
        if (std::isnan(value)) {
          ADD_FAILURE() << name << " has an element that no rank has, or that is not a number: " << layout.name();
          break;
        }
  return std::move(outcome);
}

}  // namespace train
