// SPDX-License-Identifier: MIT
//
// Collectives of tensor and sequence parallelism have work beside them in the backward pass. No clock is needed to see
// it: the second rank comes to a collective only when the first has done all that may run beside it. Where the first
// waited for the collective before, neither would go on.

#include <condition_variable>
#include <mutex>

#include "interpose/include/lockstep.h"
#include "reference/train/model/blocks.h"
#include "reference/train/model/regions.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr std::chrono::minutes kLongEnough{1};  // then they wait for each other

// Counts the kernels (the CPU's are host functions) that have run on one stream.
class Kernels {
 public:
  void watch(const Stream& stream) {
    const std::lock_guard lock(mutex_);
    stream_ = stream.get();
    count_ = 0;
  }
  void ran(const void* stream) {
    const std::lock_guard lock(mutex_);
    if (stream != stream_) return;
    ++count_;
    changed_.notify_all();
  }
  bool wait_for(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongEnough, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  const void* stream_ = nullptr;
  int count_ = 0;
} g_kernels;

class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLongEnough, [&] { return open_; })) << "nobody opened";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace
}  // namespace train

extern "C" __attribute__((visibility("default"))) void lockstep_activity_v1(int kind, const void* stream, int64_t,
                                                                            int64_t, const char*) {
  if (kind == LOCKSTEP_ACTIVITY_HOST_FUNCTION) train::g_kernels.ran(stream);
}

namespace train {
namespace {

constexpr int64_t kSequences = 2, kLength = 4;

Config config() {
  Config c;
  c.layers = 1;
  c.heads = 2;
  c.width = 8;
  c.vocab = 16;
  c.seq = kLength;
  c.dtype = Dtype::f64;
  c.dropout = 0.1;
  return c;
}

using Make = std::unique_ptr<Module> (*)(const Context&, const Parameters&);

// One module of a rank after its forward pass.
class Rank {
 public:
  Rank(Groups groups, Make make, bool overlap = true)
      : groups_(std::move(groups)),
        memory_(groups_.tp.rank()),
        exchange_(memory_, overlap),
        parameters_(config(), groups_) {
    groups_.exchange = &exchange_;
    module_ = make(context_, parameters_);
    for (Parameter* p : module_->parameters()) {
      p->value = memory_.allocate(Purpose::parameters, Dtype::f64, p->count);
      p->grad = memory_.allocate(Purpose::gradients, Dtype::f64, p->count);
      initialise(stream_.get(), context_.config, *p, p->value);
    }
    context_.loss = memory_.allocate(Purpose::workspace, Dtype::f64, 1);
    batch_.sequences = kSequences;
    batch_.length = kLength;
    const std::vector<int32_t> places = {0, 1, 2, 3, 0, 1, 2, 3}, ones(8, 1);
    batch_.targets = device_copy(memory_, places);
    batch_.positions = batch_.order = batch_.targets;
    batch_.documents = device_copy(memory_, ones);
    batch_.samples = device_copy(memory_, std::vector<int64_t>{5, 5, 5, 5, 6, 6, 6, 6});
    outer_ = outer_rows(context_, batch_).count * context_.config.width;
    forward();
    stream_.synchronize();
  }

  const Groups& groups() const { return groups_; }
  Groups release() {
    stream_.synchronize();
    return std::move(groups_);
  }
  const Context& context() const { return context_; }
  const Stream& stream() const { return stream_; }
  Exchange& exchange() { return exchange_; }
  Arena& arena() { return arena_; }

  void forward() { module_->forward(0, batch_, normal(0), arena_); }
  View backward() { return module_->backward(0, batch_, normal(1), arena_); }
  View backward_in_halves() {
    const View input_grad = module_->backward_input(0, batch_, normal(1), arena_);
    module_->backward_weight(0, batch_);
    return input_grad;
  }
  // The input's gradient and then those of all parameters, which another pass will write anew.
  std::vector<double> take(View input_grad) {
    std::vector<double> all = numbers(stream_, input_grad);
    for (Parameter* p : module_->parameters()) {
      const std::vector<double> more = numbers(stream_, p->grad);
      all.insert(all.end(), more.begin(), more.end());
      p->grad_written = false;
    }
    return all;
  }

 private:
  View normal(int64_t which) {
    const View view = arena_.take(Dtype::f64, outer_);
    fill_normal(stream_.get(), view, {3, RandomUse::test, 0}, which, 1, 1, outer_, 0, 0);
    return view;
  }

  Groups groups_;
  Memory memory_;
  Stream stream_;
  Exchange exchange_;
  Arena arena_{memory_, Purpose::activations};
  Parameters parameters_;
  Context context_{config(), groups_, stream_, {}};
  std::unique_ptr<Module> module_;
  Batch batch_;
  int64_t outer_ = 0;
};

struct Case {
  const char* name;
  Make make;
  int before;  // kernels of the backward pass up to the input gradient's sum over ranks
  int beside;  // of the weights' gradients inside the region
};
const Case kCases[] = {
    // dropout, two products and what is between them; two matrices and two biases
    {"mlp", [](const Context& c, const Parameters& p) { return make_mlp(c, p, 0); }, 4, 4},
    {"attention", [](const Context& c, const Parameters& p) { return make_attention(c, p, 0); }, 5, 4},
    // the loss and a product; the table. It begins with a kernel less, having no dropout.
    {"head", [](const Context& c, const Parameters& p) { return make_head(c, p); }, 2, 1},
};

class Overlap : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { set_devices(2); }
};

Groups groups_of(Comm comm, bool sequence) {
  Groups groups;
  groups.tp = std::move(comm);
  groups.sequence = sequence;
  return groups;
}
constexpr int kMade = 1;  // kernels by which `normal` makes the output's gradient

// The second rank begins its backward pass when the first has the gradients of its weights.
TEST_P(Overlap, WeightGradientsAreComputedBesideTheSumOfTheInputs) {
  const Case& c = GetParam();
  Gate gate;
  run_as_ranks(2, [&](Comm comm) {
    Rank rank(groups_of(std::move(comm), false), c.make);
    if (rank.groups().tp.rank() == 1) {
      gate.pass();
      rank.backward();
    } else {
      g_kernels.watch(rank.stream());
      rank.backward();
      EXPECT_TRUE(g_kernels.wait_for(kMade + c.before + c.beside)) << "they wait for the collective";
      gate.open();
    }
    rank.stream().synchronize();
  });
}

// The second rank's communication stream is held up, not what it computes.
TEST_P(Overlap, RowsAreGatheredAgainBesideInputGradients) {
  const Case& c = GetParam();
  Gate gate;
  run_as_ranks(2, [&](Comm comm) {
    Rank rank(groups_of(std::move(comm), true), c.make);
    if (rank.groups().tp.rank() == 1) {
      rank.exchange().begin(rank.stream(), [&](const Stream& beside) {
        check(cudaLaunchHostFunc(
                  beside.get(), [](void* held) { static_cast<Gate*>(held)->pass(); }, &gate),
              "hold");
      });
      rank.backward();
    } else {
      g_kernels.watch(rank.stream());
      rank.backward();
      EXPECT_TRUE(g_kernels.wait_for(kMade + c.before)) << "they wait for the rows";
      gate.open();
    }
    rank.stream().synchronize();
  });
}

// And of a pass without overlap.
TEST_P(Overlap, TheBitsAreThoseOfThePassInHalves) {
  const Case& c = GetParam();
  for (const bool sequence : {false, true})
    run_as_ranks(2, [&](Comm comm) {
      Rank rank(groups_of(std::move(comm), sequence), c.make);
      const std::vector<double> whole = rank.take(rank.backward());
      rank.forward();
      EXPECT_EQ(rank.take(rank.backward_in_halves()), whole);
      Rank serial(rank.release(), c.make, false);
      EXPECT_EQ(serial.take(serial.backward()), whole);
    });
}

INSTANTIATE_TEST_SUITE_P(Modules, Overlap, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.name); });

// Then nothing can be beside anything.
TEST(OverlapOfRegions, WithoutItAllIsOnTheComputeStream) {
  set_devices(2);
  Memory memory(0);
  const Stream compute;
  for (const bool overlap : {true, false}) {
    Exchange exchange(memory, overlap);
    exchange.begin(compute, [&](const Stream& stream) { EXPECT_EQ(&stream == &compute, !overlap); });
    exchange.join(compute);
  }
}

// Reduce-scatter as well as all-reduce.
TEST(OverlapOfRegions, WorkRunsWhileTheSumWaits) {
  set_devices(2);
  for (const bool sequence : {false, true}) {
    Gate gate;
    run_as_ranks(2, [&](Comm comm) {
      Rank rank(groups_of(std::move(comm), sequence), kCases[0].make);
      const View partial = rank.arena().take(Dtype::f64, kSequences * kLength * config().width);
      fill(rank.stream().get(), partial, 1);
      const bool late = rank.groups().tp.rank() == 1;
      if (late) gate.pass();
      const View sum = enter_columns_backward(rank.context(), partial, rank.arena(), [&] {
        if (!late)
          check(cudaLaunchHostFunc(
                    rank.stream().get(), [](void* held) { static_cast<Gate*>(held)->open(); }, &gate),
                "open");
      });
      EXPECT_EQ(numbers(rank.stream(), sum), std::vector<double>(static_cast<size_t>(sum.size), 2.0));
      EXPECT_EQ(sum.size, partial.size / (sequence ? 2 : 1));
    });
  }
}

}  // namespace
}  // namespace train
