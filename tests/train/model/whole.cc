// SPDX-License-Identifier: MIT

#include "tests/train/model/whole.h"

namespace train::test {

Whole::Whole(Model& model, Memory& memory, const Stream& stream) : model_(model), stream_(stream) {
  for (const auto& module : model.modules())
    for (Parameter* p : module->parameters()) ++uses_[p];
  for (Parameter* p : model.parameters()) {
    p->value = memory.allocate(Purpose::parameters, model.config().dtype, p->count);
    initialise(stream.get(), model.config(), *p, p->value);
    if (p->frozen) continue;
    sum_[p] = memory.allocate(Purpose::gradients, wide(p->value.dtype), p->count);
    share_[p] = memory.allocate(Purpose::gradients, wide(p->value.dtype), p->count);
    owned_.push_back({p, 0, p->count, p->value, p->value, sum_[p], {}, {}});
  }
}

void Whole::begin_micro_batch(int k) {
  left_ = uses_;
  for (auto& [p, sum] : sum_) {
    p->grad = k == 0 ? sum : share_[p];
    p->grad_written = false;
  }
}

void Whole::after_backward(int module, int k) {
  for (Parameter* p : model_.modules()[static_cast<size_t>(module)]->parameters())
    if (--left_[p] == 0 && !p->frozen && k > 0) add_to(stream_.get(), sum_[p], share_[p], 1);
}

}  // namespace train::test
