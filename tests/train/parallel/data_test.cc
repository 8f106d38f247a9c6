// SPDX-License-Identifier: MIT
//
// Strategies on modules that compute nothing: the gradient of an element is a small integer that depends on the
// parameter, the element, the rank and the micro-batch, so every sum is exact and known, whatever its order. Every
// strategy has to put every element of every gradient at exactly one owner, with the right sum, and to give every
// module the right values before each pass, over several steps of an update that is exact too.

#include "reference/train/parallel/data.h"

#include <array>
#include <atomic>
#include <mutex>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"
#include "reference/train/parallel/compress.h"
#include "reference/train/parallel/fsdp.h"
#include "reference/train/parallel/units.h"
#include "reference/train/parallel/zero.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int kRanks = 4, kSteps = 3;

[[maybe_unused]] const bool kDevices = [] {
  set_devices(kRanks);
  return true;
}();

// --- a model ---------------------------------------------------------------------------------------------------------

class FakeModule : public Module {
 public:
  FakeModule(std::string name, std::vector<Parameter*> parameters) {
    name_ = std::move(name);
    parameters_ = std::move(parameters);
  }
  View forward(int, const Batch&, View input, Arena&) override { return input; }
  View backward_input(int, const Batch&, View grad, Arena&) override { return grad; }
  void backward_weight(int, const Batch&) override {}
};

// Tied embeddings, layers of two modules, a frozen parameter in one of them, one that is never used, and, when asked
// for, two layers that share their parameters.
struct FakeModel {
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<std::unique_ptr<FakeModule>> modules;

  Parameter* add(const std::string& name, int64_t count) {
    parameters.push_back(std::make_unique<Parameter>());
    Parameter* p = parameters.back().get();
    p->name = name;
    p->global = p->local = {count};
    p->index = static_cast<int64_t>(parameters.size());
    p->count = count;
    p->frozen = name.find("frozen") != std::string::npos;
    return p;
  }
  explicit FakeModel(bool shared) {
    Parameter* wte = add("wte", 37);
    modules.push_back(std::make_unique<FakeModule>("embed", std::vector<Parameter*>{wte, add("wpe", 5)}));
    std::vector<Parameter*> attention, mlp;
    for (int layer = 0; layer < 4; ++layer) {
      const std::string h = "h." + std::to_string(layer);
      if (!shared || layer % 2 == 0) {
        attention = {add(h + ".attn.w", 23), add(h + ".attn.b", 3)};
        mlp = {add(h + ".mlp.w", 31), add(h + (layer == 2 ? ".mlp.frozen" : ".mlp.b"), 7)};
        if (layer == 2) mlp.push_back(add(h + ".mlp.unused", 6));
      }
      modules.push_back(std::make_unique<FakeModule>(h + ".attn", attention));
      modules.push_back(std::make_unique<FakeModule>(h + ".mlp", mlp));
    }
    modules.push_back(std::make_unique<FakeModule>("head", std::vector<Parameter*>{add("ln_f", 11), wte}));
  }
};

double initial_value(const Parameter& p, int64_t i) { return static_cast<double>(p.index * 1000 + i); }
// What one use of a parameter contributes.
double contribution(const Parameter& p, int64_t i, int rank, int k, int step) {
  if (p.name.find("unused") != std::string::npos) return 0;
  return static_cast<double>((p.index + i * 3 + rank * 5 + k * 7 + step) % 16);
}
double uses(const FakeModel& model, const Parameter* p) {
  double count = 0;
  for (const auto& module : model.modules)
    for (const Parameter* q : module->parameters()) count += p == q ? 1 : 0;
  return count;
}

// Work of a stream, so that what the strategies order by events only is really tried.
void write(const Stream& stream, View to, const std::function<double(int64_t)>& value, bool add = false) {
  launch(stream.get(), [=] {
    auto* data = static_cast<double*>(to.data);
    for (int64_t i = 0; i < to.size; ++i) data[i] = (add ? data[i] : 0) + value(i);
  });
}
void expect_values(const Stream& stream, View view, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(view.size, static_cast<int64_t>(wanted.size())) << what;
  launch(stream.get(), [=] {
    const auto* data = static_cast<const double*>(view.data);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (data[i] != wanted[i]) {
        ADD_FAILURE() << what << " element " << i << " is " << data[i] << ", not " << wanted[i];
        return;
      }
  });
}

// --- a job -----------------------------------------------------------------------------------------------------------

struct Case {
  std::string name;
  std::function<std::unique_ptr<Strategy>(const Setup&, const Comm* shard, const Comm* replicas)> make;
  bool hybrid = false;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

// Whole parameters after every step, from the owners, to be compared with what one rank computes.
struct Truth {
  const FakeModel model;
  int micro_batches;
  std::map<std::string, std::vector<double>> value;

  Truth(bool shared, int m) : model(shared), micro_batches(m) {
    for (const auto& p : model.parameters)
      for (int64_t i = 0; i < p->count; ++i) value[p->name].push_back(initial_value(*p, i));
  }
  double gradient(const Parameter& p, int64_t i, int ranks, int step) const {
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank)
      for (int k = 0; k < micro_batches; ++k) sum += contribution(p, i, rank, k, step);
    return sum * uses(model, &p);
  }
  void update(int ranks, int step) {
    for (const auto& p : model.parameters)
      for (int64_t i = 0; i < p->count && !p->frozen; ++i)
        value[p->name][static_cast<size_t>(i)] -= gradient(*p, i, ranks, step);
  }
};

class Rank {
 public:
  Rank(const Case& c, const Comm& group, const Comm* shard, const Comm* replicas, bool shared, int micro_batches,
       bool overlap)
      : model_(shared), group_(group), truth_(shared, micro_batches), memory_(group.rank()) {
    Setup setup{{},
                {},
                group_,
                compute_,
                memory_,
                Dtype::f64,
                micro_batches,
                true,
                overlap,
                [this](const Parameter& p, View into) {
                  write(compute_, into, [&](int64_t i) { return initial_value(p, i); });
                }};
    for (const auto& m : model_.modules) setup.modules.push_back(m.get());
    for (const auto& p : model_.parameters) setup.parameters.push_back(p.get());
    strategy_ = c.make(setup, shard, replicas);
  }

  void step(int step, int micro_batches) {
    strategy_->begin_step(micro_batches);
    for (int k = 0; k < micro_batches; ++k) {
      strategy_->begin_micro_batch(k);
      for (int m = 0; m < static_cast<int>(model_.modules.size()); ++m) {
        strategy_->before_forward(m, k);
        expect_values(m);
        strategy_->after_forward(m, k);
      }
      for (int m = static_cast<int>(model_.modules.size()) - 1; m >= 0; --m) {
        strategy_->before_backward(m, k);
        expect_values(m);
        write_gradients(m, k, step);
        strategy_->after_backward(m, k);
      }
    }
    strategy_->finish_gradients();
    update(step);
    truth_.update(group_.size(), step);
    strategy_->finish_update();
    if (step == 1) {
      strategy_->gather_all();
      for (int m = 0; m < static_cast<int>(model_.modules.size()); ++m) expect_values(m);
      strategy_->release_all();
    }
    compute_.synchronize();
  }
  std::vector<Owned>& owned() { return strategy_->owned(); }
  const Comm& owners() const { return strategy_->owners(); }

 private:
  void expect_values(int m) {
    for (const Parameter* p : model_.modules[static_cast<size_t>(m)]->parameters())
      train::expect_values(compute_, p->value, truth_.value[p->name], p->name + " of module " + std::to_string(m));
  }

  void write_gradients(int m, int k, int step) {
    const int rank = group_.rank();
    for (Parameter* p : model_.modules[static_cast<size_t>(m)]->parameters()) {
      if (p->frozen || p->name.find("unused") != std::string::npos) continue;
      const Into into = p->gradient();
      write(
          compute_, into.view, [=](int64_t i) { return contribution(*p, i, rank, k, step); }, into.add);
    }
  }

  void update(int step) {
    for (const Owned& piece : strategy_->owned()) {
      const Parameter& p = *find(piece.parameter->name);
      std::vector<double> wanted;
      for (int64_t i = 0; i < piece.count; ++i)
        wanted.push_back(truth_.gradient(p, piece.begin + i, group_.size(), step));
      train::expect_values(compute_, piece.grad, wanted, "gradient of " + p.name);
      launch(compute_.get(), [piece] {
        for (int64_t i = 0; i < piece.count; ++i)
          static_cast<double*>(piece.value.data)[i] -= static_cast<const double*>(piece.grad.data)[i];
      });
    }
  }
  const Parameter* find(const std::string& name) const {
    for (const auto& p : truth_.model.parameters)
      if (p->name == name) return p.get();
    return nullptr;
  }

  FakeModel model_;
  const Comm& group_;
  Truth truth_;
  Stream compute_;
  Memory memory_;
  std::unique_ptr<Strategy> strategy_;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const double cap : {1.0, 400.0, 1e9}) {
    const std::string suffix = cap < 2 ? "_tiny_buckets" : cap < 1e6 ? "_small_buckets" : "_one_bucket";
    cases.push_back({"dp" + suffix,
                     [cap](const Setup& s, const Comm*, const Comm*) { return make_data_parallel(s, cap, nullptr); }});
    cases.push_back({"zero1" + suffix, [cap](const Setup& s, const Comm*, const Comm*) { return make_zero1(s, cap); }});
    cases.push_back(
        {"zero2" + suffix, [cap](const Setup& s, const Comm*, const Comm*) { return make_zero2(s, cap, false); }});
  }
  cases.push_back(
      {"zero2_own_slots", [](const Setup& s, const Comm*, const Comm*) { return make_zero2(s, 400, true); }});
  cases.push_back({"dp_topk_of_everything", [](const Setup& s, const Comm*, const Comm*) {
                     return make_data_parallel(s, 400, make_topk(s.memory, 1));
                   }});
  for (const char* wrap : {"block", "layer", "size:60", "none"})
    for (const int prefetch : {0, 1, 2, 3})
      for (const int keep : {0, 1, 2, 3}) {
        if (prefetch != 0 && prefetch != 3 && std::string(wrap) != "block") continue;
        FsdpSettings settings;
        settings.wrap = wrap;
        settings.prefetch_forward = (prefetch & 1) != 0;
        settings.prefetch_backward = (prefetch & 2) != 0;
        settings.keep_root = keep > 0;
        settings.keep_all = keep == 2;
        settings.keep_for_step = keep == 3;
        const std::string kind = keep == 0 ? "zero3" : keep == 1 ? "full" : keep == 2 ? "grad_op" : "keep_for_step";
        std::string name = kind + "_" + wrap + "_prefetch" + std::to_string(prefetch);
        std::replace(name.begin(), name.end(), ':', '_');
        cases.push_back(
            {name, [settings](const Setup& s, const Comm*, const Comm*) { return make_fsdp(s, settings); }});
      }
  for (const char* wrap : {"block", "layer", "size:60", "none"})
    for (const bool keep_root : {false, true}) {
      FsdpSettings settings;
      settings.wrap = wrap;
      settings.keep_root = keep_root;
      settings.no_sync = true;
      std::string name = (keep_root ? "full_no_sync_" : "zero3_no_sync_") + settings.wrap;
      std::replace(name.begin(), name.end(), ':', '_');
      cases.push_back({name, [settings](const Setup& s, const Comm*, const Comm*) { return make_fsdp(s, settings); }});
    }
  for (const bool no_sync : {false, true})
    cases.push_back({no_sync ? "hybrid_no_sync" : "hybrid",
                     [no_sync](const Setup& s, const Comm* shard, const Comm* replicas) {
                       FsdpSettings settings;
                       settings.shard = shard;
                       settings.replicas = replicas;
                       settings.no_sync = no_sync;
                       return make_fsdp(s, settings);
                     },
                     true});
  return cases;
}

class DataStrategies : public testing::TestWithParam<Case> {};

// Two groups of half the ranks, and pairs across them.
Comm part_of(const Comm& world, int color, int key, int size) {
  if (size == 1) return {};
  ncclComm_t handle = nullptr;
  check(ncclCommSplit(world.get(), color, key, &handle, nullptr), "ncclCommSplit");
  return Comm(handle, key, size, "part", {});
}

void run_case(const Case& c, int ranks, bool shared, int micro_batches, bool overlap) {
  SCOPED_TRACE(c.name + " ranks " + std::to_string(ranks) + (shared ? " shared" : "") + " micro-batches " +
               std::to_string(micro_batches) + (overlap ? "" : " no overlap"));
  std::mutex mutex;
  std::map<std::string, std::vector<int>> owners;  // how often each element is owned
  run_as_ranks(ranks, [&](Comm group) {
    Comm shard, replicas;
    if (c.hybrid && ranks > 1) {
      const int half = ranks / 2;
      shard = part_of(group, group.rank() / half, group.rank() % half, half);
      replicas = part_of(group, group.rank() % half, group.rank() / half, 2);
    }
    Rank rank(c, group, c.hybrid ? &shard : nullptr, c.hybrid ? &replicas : nullptr, shared, micro_batches, overlap);
    const bool counts = rank.owners().size() > 1 ? !c.hybrid || group.rank() < ranks / 2 : group.rank() == 0;
    if (counts) {
      const std::lock_guard lock(mutex);
      for (const Owned& piece : rank.owned()) {
        std::vector<int>& count = owners[piece.parameter->name];
        count.resize(static_cast<size_t>(piece.parameter->count));
        for (int64_t i = 0; i < piece.count; ++i) ++count[static_cast<size_t>(piece.begin + i)];
      }
    }
    for (int step = 0; step < kSteps; ++step) rank.step(step, micro_batches);
  });
  for (const auto& p : FakeModel(shared).parameters)
    if (!p->frozen)
      EXPECT_EQ(owners[p->name], std::vector<int>(static_cast<size_t>(p->count), 1)) << p->name;
    else
      EXPECT_EQ(owners.count(p->name), 0u);
}

TEST_P(DataStrategies, EveryElementHasOneOwnerAndTheRightSum) {
  run_case(GetParam(), 1, false, 2, true);
  run_case(GetParam(), 2, false, 1, true);
  run_case(GetParam(), 2, true, 3, false);
  run_case(GetParam(), 4, true, 2, true);
}

INSTANTIATE_TEST_SUITE_P(All, DataStrategies, testing::ValuesIn(all_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace train
