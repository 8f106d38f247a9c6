// SPDX-License-Identifier: MIT
//
// The pipeline runtime by itself, with pieces of a model so small that the right answer is a loop: piece i turns x into
// w_i x + micro-batch, so that what arrives at the wrong place, too late or overwritten shows in every number.

#include "reference/train/parallel/pipeline.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "reference/train/parallel/schedule_simulate.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int64_t kElements = 33;

double weight_of(int piece) { return 1 + 0.125 * (piece + 1); }

void enqueue(const Stream& stream, std::function<void()> body) {
  auto* held = new std::function<void()>(std::move(body));
  const auto run = [](void* data) {
    (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(data)))();
  };
  check(cudaLaunchHostFunc(stream.get(), run, held), "cudaLaunchHostFunc");
}

struct Sums {
  std::vector<double> weight_grads;  // by chunk
  double loss = 0;                   // on the last stage
  std::vector<double> first_grads;   // gradients of the model's input, all micro-batches, on the first stage
};

// A stage of the model above.
class Toy {
 public:
  Toy(const Schedule& schedule, const Comm& pp, const Stream& stream, Memory& memory)
      : schedule_(schedule), stage_(pp.rank()), stream_(stream) {
    sums_.weight_grads.resize(static_cast<size_t>(schedule.chunks));
    sums_.first_grads.resize(static_cast<size_t>(schedule.micro_batches) * kElements);
    const PipelinePlan plan = plan_stage(schedule, stage_);
    for (int slot = 0; slot < plan.slots; ++slot)
      slots_.push_back({{},
                        {},
                        memory.allocate(Purpose::activations, Dtype::f64, kElements),
                        memory.allocate(Purpose::activations, Dtype::f64, kElements),
                        memory.allocate(Purpose::activations, Dtype::f64, kElements)});
  }

  Passes passes() {
    return {[this](int slot, int k, int chunk, View input) { return forward(slot, k, chunk, input); },
            [this](int slot, int k, int chunk, View grad) {
              const View result = backward_input(slot, k, chunk, grad);
              backward_weight(slot, k, chunk);
              return result;
            },
            [this](int slot, int k, int chunk, View grad) { return backward_input(slot, k, chunk, grad); },
            [this](int slot, int k, int chunk) { backward_weight(slot, k, chunk); }};
  }
  const Sums& sums() const { return sums_; }

 private:
  struct Slot {
    View x, grad;  // of a neighbour, held by the pipeline
    View own, y, x_grad;
  };
  static double* at(View view) { return static_cast<double*>(view.data); }
  int piece(int chunk) const { return chunk * schedule_.stages + stage_; }
  bool last(int chunk) const { return piece(chunk) == schedule_.stages * schedule_.chunks - 1; }

  View forward(int slot, int k, int chunk, View input) {
    Slot& s = slots_[static_cast<size_t>(slot)];
    EXPECT_EQ(!input, piece(chunk) == 0);
    s.x = input ? input : s.own;
    enqueue(stream_, [this, s, k, chunk, begins = !input] {
      for (int64_t i = 0; i < kElements; ++i) {
        if (begins) at(s.x)[i] = static_cast<double>(i + 1) / (k + 1);
        at(s.y)[i] = weight_of(piece(chunk)) * at(s.x)[i] + k;
        if (last(chunk)) sums_.loss += at(s.y)[i] * at(s.y)[i] / 2;
      }
    });
    return s.y;
  }
  View backward_input(int slot, int k, int chunk, View grad) {
    Slot& s = slots_[static_cast<size_t>(slot)];
    EXPECT_EQ(!grad, last(chunk));
    s.grad = grad ? grad : s.y;  // of the loss above
    enqueue(stream_, [this, s, k, chunk] {
      for (int64_t i = 0; i < kElements; ++i) {
        at(s.x_grad)[i] = weight_of(piece(chunk)) * at(s.grad)[i];
        if (piece(chunk) == 0) sums_.first_grads[static_cast<size_t>(k * kElements + i)] = at(s.x_grad)[i];
      }
    });
    return s.x_grad;
  }
  void backward_weight(int slot, int, int chunk) {
    const Slot s = slots_[static_cast<size_t>(slot)];
    enqueue(stream_, [this, s, chunk] {
      for (int64_t i = 0; i < kElements; ++i)
        sums_.weight_grads[static_cast<size_t>(chunk)] += at(s.grad)[i] * at(s.x)[i];
    });
  }

  const Schedule& schedule_;
  int stage_;
  const Stream& stream_;
  std::vector<Slot> slots_;
  Sums sums_;
};

// By piece; the same sums in the same order, without a pipeline.
struct Expected {
  std::vector<double> weight_grads, first_grads;
  double loss = 0;
};
Expected expected(int pieces, int micro_batches) {
  Expected result;
  result.weight_grads.resize(static_cast<size_t>(pieces));
  for (int k = 0; k < micro_batches; ++k) {
    std::vector<std::vector<double>> x(static_cast<size_t>(pieces) + 1, std::vector<double>(kElements));
    for (int64_t i = 0; i < kElements; ++i) x[0][static_cast<size_t>(i)] = static_cast<double>(i + 1) / (k + 1);
    for (size_t p = 0; p < static_cast<size_t>(pieces); ++p)
      for (size_t i = 0; i < kElements; ++i) x[p + 1][i] = weight_of(static_cast<int>(p)) * x[p][i] + k;
    std::vector<double> grad = x.back();
    for (const double y : grad) result.loss += y * y / 2;
    for (int p = pieces - 1; p >= 0; --p)
      for (size_t i = 0; i < kElements; ++i) {
        result.weight_grads[static_cast<size_t>(p)] += grad[i] * x[static_cast<size_t>(p)][i];
        grad[i] *= weight_of(p);
      }
    result.first_grads.insert(result.first_grads.end(), grad.begin(), grad.end());
  }
  return result;
}

// Two steps, so that what one leaves in buffers and events meets the next.
std::vector<Sums> run_pipeline(const Schedule& schedule) {
  std::vector<Sums> all(static_cast<size_t>(schedule.stages));
  run_as_ranks(schedule.stages, [&](const Comm& pp) {
    Memory memory(pp.rank());
    const Stream stream;
    Pipeline pipeline(schedule, pp, stream, memory, Dtype::f64, kElements);
    for (int step = 0; step < 2; ++step) {
      Toy toy(schedule, pp, stream, memory);
      pipeline.run(toy.passes());
      stream.synchronize();
      all[static_cast<size_t>(pp.rank())] = toy.sums();
    }
  });
  return all;
}

using Layout = std::tuple<const char*, int, int, int>;  // schedule, stages, micro-batches, chunks
class PipelineRuntime : public testing::TestWithParam<Layout> {};

TEST_P(PipelineRuntime, EveryScheduleGivesTheSameBitsAsNone) {
  set_devices(4);
  const auto [name, stages, micro_batches, chunks] = GetParam();
  const std::vector<Sums> all = run_pipeline(make_schedule(name, stages, micro_batches, chunks));
  const Expected wanted = expected(stages * chunks, micro_batches);
  for (int piece = 0; piece < stages * chunks; ++piece)
    EXPECT_EQ(all[static_cast<size_t>(piece % stages)].weight_grads[static_cast<size_t>(piece / stages)],
              wanted.weight_grads[static_cast<size_t>(piece)]);
  EXPECT_EQ(all.back().loss, wanted.loss);
  EXPECT_EQ(all.front().first_grads, wanted.first_grads);
}
INSTANTIATE_TEST_SUITE_P(Layouts, PipelineRuntime,
                         testing::Values(Layout("gpipe", 2, 4, 1), Layout("gpipe", 4, 6, 1), Layout("1f1b", 2, 1, 1),
                                         Layout("1f1b", 2, 5, 1), Layout("1f1b", 4, 8, 1), Layout("1f1b", 1, 3, 1),
                                         Layout("interleaved", 2, 4, 2), Layout("interleaved", 2, 6, 3),
                                         Layout("interleaved", 4, 8, 2), Layout("zero-bubble", 2, 5, 1),
                                         Layout("zero-bubble", 4, 8, 1), Layout("zero-bubble", 4, 2, 1),
                                         Layout("zero-bubble-2", 2, 4, 1), Layout("zero-bubble-2", 4, 9, 1)));

}  // namespace
}  // namespace train
