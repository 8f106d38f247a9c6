// SPDX-License-Identifier: MIT
//
// The trainer's speed at L4 H4 C256 T128 B8 V256, fp32 with AdamW.
//
// First a step's kernels by themselves, one after another, beside what the machine's BLAS makes possible: the products
// of the step as plain sgemm calls, in the same run. All that is not a product (softmax, norms, GELU, the optimizer)
// must cost little. That is measured in time of the processor, which says much the same on a busy machine. Then the
// program as it is used, in tokens a second. With the argument `kernels` each kernel's time is told.

#include <cblas.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/kernels/kernels.h"
#include "tests/bench/figures.h"

namespace {

using namespace train;

constexpr int64_t kLayers = 4, kHeads = 4, kWidth = 256, kLength = 128, kSequences = 8, kClasses = 256;
constexpr int64_t kRows = kSequences * kLength;
constexpr int kRepeats = 7;

// Milliseconds of the processor.
double now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

struct Call {
  std::string name;
  int64_t times;  // in a step
  std::function<void(cudaStream_t)> enqueue;
};

struct Product {  // of a step: m x n x k, so many times
  int64_t m, n, k, times;
};

class Step {
 public:
  Step(Dtype dtype, double dropout) : type_(dtype), dropout_(dropout) { list(); }

  // Milliseconds of each call in a step, the best of some runs.
  std::map<std::string, double> measure() {
    std::map<std::string, double> best;
    for (int repeat = 0; repeat < kRepeats; ++repeat)
      for (const Call& call : calls_) {
        const double begin = now();
        for (int i = 0; i < 4; ++i) call.enqueue(stream_.get());
        stream_.synchronize();
        const double spent = (now() - begin) / 4 * static_cast<double>(call.times);
        double& entry = best.try_emplace(call.name, spent).first->second;
        entry = std::min(entry, spent);
      }
    return best;
  }
  const std::vector<Product>& products() const { return products_; }

 private:
  View view(int64_t count, Dtype dtype) {
    const View made = memory_.allocate(Purpose::workspace, dtype, count);
    fill_normal(stream_.get(), made, {1, RandomUse::test, 0}, ++views_, 0.5, 1, count, 0, 0);
    return made;
  }
  View view(int64_t count) { return view(count, type_); }
  View statistics(int64_t count) { return view(count, wide(type_)); }
  template <class T>
  const T* indices(const std::function<T(int64_t)>& of) {
    auto* made = static_cast<T*>(memory_.allocate_bytes(Purpose::workspace, kRows * sizeof(T)));
    std::vector<T> values(kRows);
    for (int64_t i = 0; i < kRows; ++i) values[static_cast<size_t>(i)] = of(i);
    cudaMemcpyAsync(made, values.data(), kRows * sizeof(T), cudaMemcpyDefault, stream_.get());
    stream_.synchronize();
    return made;
  }
  void linear(const std::string& name, int64_t inputs, int64_t outputs, int64_t times, bool biased) {
    const View x = view(kRows * inputs), w = view(outputs * inputs), b = biased ? view(outputs) : View{};
    const View y = view(kRows * outputs), x_grad = view(kRows * inputs);
    const View w_grad = statistics(outputs * inputs), b_grad = statistics(outputs);
    calls_.push_back({"product " + name + " forward", times,
                      [=](cudaStream_t s) { linear_forward(s, y, x, w, b, kRows, inputs, outputs); }});
    calls_.push_back({"product " + name + " backward input", times, [=](cudaStream_t s) {
                        linear_backward_input(s, {x_grad, false}, y, w, kRows, inputs, outputs);
                      }});
    calls_.push_back({"product " + name + " backward weight", times, [=](cudaStream_t s) {
                        linear_backward_weight(s, {w_grad, false}, y, x, kRows, inputs, outputs);
                      }});
    if (biased)
      calls_.push_back({"bias backward " + name, times, [=](cudaStream_t s) {
                          bias_backward(s, {b_grad, false}, y, kRows, outputs);
                        }});
    products_.push_back({kRows, outputs, inputs, times});
    products_.push_back({kRows, inputs, outputs, times});
    products_.push_back({outputs, inputs, kRows, times});
  }
  void attention() {
    constexpr int64_t kHead = kWidth / kHeads;
    const AttentionShape shape{kSequences, kLength, kLength, kHeads, kHeads, kHead, 3 * kWidth, 3 * kWidth, kWidth};
    const auto* order = indices<int32_t>([](int64_t i) { return static_cast<int32_t>(i % kLength); });
    const auto* documents = indices<int32_t>([](int64_t) { return 0; });
    const auto* samples = indices<int64_t>([](int64_t i) { return i / kLength; });
    const AttentionRows rows{order, documents, order, documents, samples};
    const View qkv = view(3 * kWidth * kRows), grads = view(3 * kWidth * kRows);
    const View out = view(kWidth * kRows), out_grad = view(kWidth * kRows);
    const View lse = statistics(kRows * kHeads), delta = statistics(kRows * kHeads);
    const RandomStream random{1, RandomUse::attention_dropout, 2};
    const auto third = [](const View& v, int64_t i) { return v.part(i * kWidth, v.size - 2 * kWidth); };
    const double p = dropout_;
    calls_.push_back({"attention forward", kLayers, [=](cudaStream_t s) {
                        attention_forward(s, out, lse, third(qkv, 0), third(qkv, 1), third(qkv, 2), shape, rows, random,
                                          p, false);
                      }});
    calls_.push_back(
        {"attention delta", kLayers, [=](cudaStream_t s) { attention_delta(s, delta, out_grad, out, shape); }});
    calls_.push_back({"attention backward", kLayers, [=](cudaStream_t s) {
                        attention_backward(s, {third(grads, 0), false}, {third(grads, 1), false},
                                           {third(grads, 2), false}, out_grad, third(qkv, 0), third(qkv, 1),
                                           third(qkv, 2), lse, delta, shape, rows, random, p);
                      }});
    const int64_t matrices = kSequences * kHeads * kLayers;
    for (int i = 0; i < 3; ++i) products_.push_back({kLength, kLength, kHead, matrices});
    for (int i = 0; i < 4; ++i) products_.push_back({kLength, kHead, kLength, matrices});
  }
  void rows_and_elements() {
    const View x = view(kRows * kWidth), y = view(kRows * kWidth), gain = view(kWidth), bias = view(kWidth);
    const View mean = statistics(kRows), rstd = statistics(kRows), g1 = statistics(kWidth), g2 = statistics(kWidth);
    const View x_grad = view(kRows * kWidth), wide_in = view(4 * kRows * kWidth), wide_out = view(4 * kRows * kWidth);
    calls_.push_back({"norm forward", 2 * kLayers + 1,
                      [=](cudaStream_t s) { layernorm_forward(s, y, mean, rstd, x, gain, bias, kRows, kWidth); }});
    calls_.push_back({"norm backward input", 2 * kLayers + 1, [=](cudaStream_t s) {
                        layernorm_backward_input(s, {x_grad, false}, y, x, gain, mean, rstd, kRows, kWidth);
                      }});
    calls_.push_back({"norm backward weight", 2 * kLayers + 1, [=](cudaStream_t s) {
                        layernorm_backward_weight(s, {g1, false}, {g2, false}, y, x, mean, rstd, kRows, kWidth);
                      }});
    calls_.push_back({"residual add", 4 * kLayers, [=](cudaStream_t s) { add(s, x_grad, x, y); }});
    calls_.push_back({"gelu forward", kLayers, [=](cudaStream_t s) { gelu_forward(s, wide_out, wide_in); }});
    calls_.push_back(
        {"gelu backward", kLayers, [=](cudaStream_t s) { gelu_backward(s, wide_out, wide_out, wide_in); }});
    const auto* tokens = indices<int32_t>([](int64_t i) { return static_cast<int32_t>(i * 7919 % kClasses); });
    const auto* order = indices<int32_t>([](int64_t i) { return static_cast<int32_t>(i % kLength); });
    const auto* samples = indices<int64_t>([](int64_t i) { return i / kLength; });
    if (dropout_ > 0) {
      const double p = dropout_;
      calls_.push_back({"dropout", 2 * (2 * kLayers + 1), [=](cudaStream_t s) {
                          dropout(s, y, x, {1, RandomUse::mlp_dropout, 0}, p, samples, order, kRows, kWidth, 0);
                        }});
    }
    const View table = view(kClasses * kWidth), table_grad = statistics(kClasses * kWidth);
    calls_.push_back({"embedding forward", 2, [=](cudaStream_t s) {
                        embedding_forward(s, {x, false}, table, tokens, 0, kClasses, kRows, kWidth);
                      }});
    calls_.push_back({"embedding backward", 2, [=](cudaStream_t s) {
                        embedding_backward(s, {table_grad, true}, x_grad, tokens, 0, kClasses, kRows, kWidth);
                      }});
    const View logits = view(kRows * kClasses), peak = statistics(kRows), target = statistics(kRows),
               sums = statistics(kRows), loss = view(1, Dtype::f64);
    calls_.push_back({"loss", 1, [=](cudaStream_t s) {
                        loss_row_max(s, peak, logits, kRows, kClasses, 0, kClasses);
                        loss_row_sums(s, target, sums, logits, peak, tokens, kRows, kClasses, 0, kClasses);
                        loss_sum(s, loss, target, sums, tokens, kRows);
                        loss_backward(s, logits, peak, sums, tokens, kRows, kClasses, 0, kClasses, 1);
                      }});
  }
  void optimizer() {
    constexpr int64_t kParameters = kLayers * (12 * kWidth + 13) * kWidth + (kClasses + kLength + 2) * kWidth;
    const View value = view(kParameters), grad = statistics(kParameters), first = statistics(kParameters),
               second = statistics(kParameters), squares = view(2, Dtype::f64);
    const View master = type_ == wide(type_) ? value : statistics(kParameters);
    fill(stream_.get(), second, 1);
    calls_.push_back({"divide", 1, [=](cudaStream_t s) { divide(s, grad, 1); }});
    calls_.push_back({"add squares", 1, [=](cudaStream_t s) { add_squares(s, squares, grad); }});
    calls_.push_back({"adamw", 1, [=](cudaStream_t s) {
                        adamw(s, value, master, first, second, grad, 1, {1e-4, 0.9, 0.999, 1e-8, 0.1, 10});
                      }});
  }
  void list() {
    linear("qkv", kWidth, 3 * kWidth, kLayers, true);
    linear("projection", kWidth, kWidth, kLayers, true);
    linear("fc", kWidth, 4 * kWidth, kLayers, true);
    linear("fc projection", 4 * kWidth, kWidth, kLayers, true);
    linear("head", kWidth, kClasses, 1, false);
    attention();
    rows_and_elements();
    optimizer();
    stream_.synchronize();
  }

  Dtype type_;
  double dropout_;
  int64_t views_ = 0;
  Memory memory_{0};
  Stream stream_;
  std::vector<Call> calls_;
  std::vector<Product> products_;
};

// The same products by BLAS alone, on this thread. Attention's are counted apart.
struct BlasTimes {
  double dense = 0, attention = 0;
};
BlasTimes blas_times(const std::vector<Product>& products) {
  std::vector<float> a(kRows * 4 * kWidth, 0.5F), b(a), c(a);
  BlasTimes sum;
  for (const auto& [m, n, k, times] : products) {
    double best = 1e30;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const double begin = now();
      for (int i = 0; i < 4; ++i)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(m), static_cast<blasint>(n),
                    static_cast<blasint>(k), 1, a.data(), static_cast<blasint>(k), b.data(), static_cast<blasint>(k), 0,
                    c.data(), static_cast<blasint>(n));
      best = std::min(best, (now() - begin) / 4);
    }
    (m == kLength ? sum.attention : sum.dense) += best * static_cast<double>(times);
  }
  return sum;
}

void measure_kernels(lockstep::bench::Figures& figures, bool all) {
  set_threads(1);
  for (const double p : {0.0, 0.1}) {
    Step step(Dtype::f32, p);
    double sum = 0, dense = 0, attention = 0;
    for (const auto& [name, ms] : step.measure()) {
      sum += ms;
      if (name.starts_with("product")) dense += ms;
      if (name.starts_with("attention")) attention += ms;
      if (all) std::printf("  %-42s %10.2f ms\n", name.c_str(), ms);
    }
    const BlasTimes blas = blas_times(step.products());
    const double rest = sum - dense - std::min(blas.attention, attention);
    const std::string with = p > 0 ? ", dropout 0.1" : "";
    figures.tell("trainer: kernels of a step" + with, sum, "ms");
    figures.at_most("trainer: a step / its products by BLAS" + with, sum / (blas.dense + blas.attention),
                    p > 0 ? 2 : 1.75, "x");
    figures.at_most("trainer: share of what is no product" + with, rest / sum, p > 0 ? 0.40 : 0.30, "");
  }
}

#ifdef TRAIN_PROGRAM
// Tokens a second of the program's later steps: the best, for what else the machine does only slows it down.
double tokens_per_second(const std::string& options) {
  const std::string command =
      std::string(TRAIN_PROGRAM) + " --layers 4 --heads 4 --width 256 --seq 128 --micro-batch 8 --steps 24 " + options;
  FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return 0;
  double best = 0;
  char line[512];
  while (std::fgets(line, sizeof line, output) != nullptr) {
    int step = 0;
    double rate = 0;
    if (std::sscanf(line, "step %d loss %*f norm %*f lr %*f %lf tokens/s", &step, &rate) == 2 && step > 4)
      best = std::max(best, rate);
  }
  return pclose(output) == 0 ? best : 0;
}

// Runs that are compared take turns.
void measure_program(lockstep::bench::Figures& figures) {
  double one = 0, two = 0, ranks = 0;
  for (int turn = 0; turn < 3; ++turn) {
    one = std::max(one, tokens_per_second("--threads 1"));
    two = std::max(two, tokens_per_second("--threads 2"));
    ranks = std::max(ranks, tokens_per_second("--threads 1 --dp 2"));
  }
  figures.at_least("trainer: one thread", one / 1e3, 3.5, "kt/s");
  figures.at_least("trainer: two threads", two / 1e3, 4.5, "kt/s");
  figures.at_least("trainer: two data-parallel ranks / one", one > 0 ? ranks / one : 0, 1.7, "x");
}
#endif

}  // namespace

int main(int argc, char** argv) {
  lockstep::bench::Figures figures;
  openblas_set_num_threads(1);
  measure_kernels(figures, argc > 1 && std::string(argv[1]) == "kernels");
#ifdef TRAIN_PROGRAM
  measure_program(figures);
#endif
  return figures.exit_status();
}
