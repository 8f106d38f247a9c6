// SPDX-License-Identifier: MIT

#include "reference/train/parallel/tied.h"

#include <algorithm>

#include "reference/train/kernels/kernels.h"

namespace train {
namespace {

// A module of one parameter, which computes nothing.
class Holder : public Module {
 public:
  explicit Holder(Parameter& table) {
    name_ = "tied";
    parameters_ = {&table};
  }
  View forward(int, const Batch&, View input, Arena&) override { return input; }
  View backward_input(int, const Batch&, View grad, Arena&) override { return grad; }
  void backward_weight(int, const Batch&) override {}
};

class TiedEnds : public Strategy {
 public:
  TiedEnds(const Setup& setup, Parameter& table, const Comm& ends,
           const std::function<std::unique_ptr<Strategy>(const Setup&)>& make)
      : holder_(table), setup_(setup), table_(table), ends_(ends), uses_(setup.modules.size()) {
    for (size_t m = 0; m < setup.modules.size(); ++m) {
      const std::vector<Parameter*>& held = setup.modules[m]->parameters();
      uses_[m] = std::count(held.begin(), held.end(), &table) > 0;
    }
    sum_ = setup.memory.allocate(Purpose::gradients, wide(setup.dtype), table.count);
    Setup extended = setup;
    extended.modules.insert(extended.modules.begin(), &holder_);
    strategy_ = make(extended);
  }

  void begin_step(int micro_batches) override { strategy_->begin_step(micro_batches); }
  void begin_micro_batch(int k) override { strategy_->begin_micro_batch(k); }
  void before_forward(int module, int k) override { strategy_->before_forward(module + 1, k); }
  void after_forward(int module, int k) override { strategy_->after_forward(module + 1, k); }
  void before_backward(int module, int k) override { strategy_->before_backward(module + 1, k); }

  void after_backward(int module, int k) override {
    if (uses_[static_cast<size_t>(module)]) keep(k);
    strategy_->after_backward(module + 1, k);
    if (uses_[static_cast<size_t>(module)] && k < setup_.micro_batches - 1) settle(k);
  }

  void finish_gradients() override {
    ends_.all_reduce(sum_, ncclSum, setup_.compute);
    copy(table_.grad, sum_);
    table_.grad_written = true;
    settle(setup_.micro_batches - 1);
    strategy_->finish_gradients();
  }
  void finish_update() override { strategy_->finish_update(); }

  std::vector<Owned>& owned() override { return strategy_->owned(); }
  const Comm& owners() const override { return strategy_->owners(); }
  void gather_all() override { strategy_->gather_all(); }
  void release_all() override { strategy_->release_all(); }

 private:
  // Takes this micro-batch's gradient away.
  void keep(int k) {
    if (k == 0)
      copy(sum_, table_.grad);
    else
      add_to(setup_.compute.get(), sum_, table_.grad, 1);
    table_.grad_written = false;
  }
  void settle(int k) {
    strategy_->before_backward(0, k);
    strategy_->after_backward(0, k);
  }
  void copy(View to, View from) {
    check(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, setup_.compute.get()),
          "cudaMemcpyAsync");
  }

  Holder holder_;
  const Setup setup_;
  Parameter& table_;
  const Comm& ends_;
  std::vector<bool> uses_;
  View sum_;
  std::unique_ptr<Strategy> strategy_;
};

}  // namespace

std::unique_ptr<Strategy> tie_ends(const Setup& setup, Parameter& table, const Comm& ends,
                                   const std::function<std::unique_ptr<Strategy>(const Setup&)>& make) {
  return std::make_unique<TiedEnds>(setup, table, ends, make);
}

}  // namespace train
