// SPDX-License-Identifier: MIT
//
// What FSDP asks of its gradients: that each unit's sum over micro-batches and ranks ends as a shard. Either a gradient
// is never whole (sharded_gradients.h), or it is until the last micro-batch (unsynchronised.h).

#pragma once

#include <functional>

#include "reference/train/core/tensor.h"

namespace train {

class UnitGradients {
 public:
  virtual ~UnitGradients() = default;

  // Called on the communication stream after a group's last reduction.
  using Then = std::function<void(int group, View shard)>;
  void then(Then then) { then_ = std::move(then); }

  virtual void begin_step() = 0;
  virtual void before_backward(int module, int k) = 0;
  virtual void after_backward(int module, int k) = 0;
  virtual void finish() = 0;  // everything is reduced before later work of the compute stream
  virtual View shard(int group) const = 0;

 protected:
  Then then_;
};

}  // namespace train
