// SPDX-License-Identifier: MIT
//
// Fully sharded data parallelism (Zhao et al. 2023, 2304.11277) and ZeRO-3 (1910.02054, section 5.3): parameters too
// are sharded, and gathered unit by unit when they are needed.

#pragma once

#include <memory>
#include <string>

#include "reference/train/core/strategy.h"
#include "reference/train/parallel/setup.h"

namespace train {

struct FsdpSettings {
  std::string wrap = "block";
  bool keep_root = true;  // the root unit stays gathered from forward to backward pass, as FSDP does; ZeRO-3 does not
  bool keep_all = false;  // all units do (SHARD_GRAD_OP)
  bool keep_for_step = false;  // and over all micro-batches of a step, with gradients open in several (a pipeline)
  // Gradients are added up whole, and reduced in the last micro-batch of a step only (PyTorch's no_sync).
  bool no_sync = false;
  bool prefetch_forward = false, prefetch_backward = true;
  // Over which parameters are sharded, and what is replicated (HYBRID_SHARD); without it `shard` is the whole group.
  const Comm* shard = nullptr;
  const Comm* replicas = nullptr;
};

std::unique_ptr<Strategy> make_fsdp(const Setup& setup, const FsdpSettings& settings);

}  // namespace train
