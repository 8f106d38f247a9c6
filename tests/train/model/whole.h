// SPDX-License-Identifier: MIT
//
// The simplest strategy: every value and every gradient whole on the one rank there is.

#pragma once

#include <map>
#include <vector>

#include "reference/train/core/device.h"
#include "reference/train/core/strategy.h"
#include "reference/train/model/model.h"

namespace train::test {

class Whole : public Strategy {
 public:
  Whole(Model& model, Memory& memory, const Stream& stream);

  void begin_micro_batch(int k) override;
  void after_backward(int module, int k) override;
  void finish_gradients() override {}
  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return alone_; }

 private:
  Model& model_;
  const Stream& stream_;
  std::vector<Owned> owned_;
  std::map<Parameter*, View> sum_, share_;  // over micro-batches; of this micro-batch
  std::map<Parameter*, int> uses_, left_;   // modules that use it, and that have yet to in this micro-batch
  Comm alone_;
};

}  // namespace train::test
