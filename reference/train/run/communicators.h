// SPDX-License-Identifier: MIT
//
// All communicators of a rank, each a split of the world, with names that verdicts show. Groups of one rank get none.

#pragma once

#include <nccl.h>

#include <cstdint>
#include <string>

#include "reference/train/core/comm.h"
#include "reference/train/core/mesh.h"
#include "reference/train/core/module.h"

namespace train {

struct Communicators {
  Comm world;
  Comm data;             // dp x cp: over which gradients of dense parameters are summed
  Comm shard, replicas;  // `data` as a grid of its own, under hybrid sharding
  Groups groups;         // tp, kv, cp, ep: what modules take part in
  Comm pp;
  Comm ends;     // the first and the last stage of a pipeline, on these
  Comm experts;  // edp: over which gradients of experts are summed
  Comm model;    // tp x pp: whose parameters together are the model
};

// The communicator of this rank's group along `axes`. Every rank of the world calls this, in the same order. With
// `slice` the group is cut into runs of that many ranks, and with `stride` set the ranks are every slice-th one
// instead.
Comm split(const Comm& world, const Mesh& mesh, const std::string& axes, const std::string& name, int slice = 0,
           bool stride = false);

// hybrid_shard: ranks that share a parameter under hybrid sharding, 0 without it.
// kv_heads: of the model, 0 if as many as heads.
Communicators make_communicators(const ncclUniqueId& id, int rank, const Mesh& mesh, int hybrid_shard,
                                 int64_t kv_heads = 0);

}  // namespace train
