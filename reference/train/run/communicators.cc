// SPDX-License-Identifier: MIT

#include "reference/train/run/communicators.h"

#include <algorithm>
#include <vector>

namespace train {
namespace {

// The part of the group that this rank is in: a run of `slice` ranks, or, with `stride`, the ranks at the same place of
// every run.
std::vector<int> part_of(const std::vector<int>& group, int rank, int slice, bool stride) {
  if (slice == 0) return group;
  const int mine = static_cast<int>(std::find(group.begin(), group.end(), rank) - group.begin());
  std::vector<int> part;
  for (int i = 0; i < static_cast<int>(group.size()); ++i)
    if (stride ? i % slice == mine % slice : i / slice == mine / slice) part.push_back(group[static_cast<size_t>(i)]);
  return part;
}

}  // namespace

Comm split(const Comm& world, const Mesh& mesh, const std::string& axes, const std::string& name, int slice,
           bool stride) {
  const std::vector<int> members = part_of(mesh.group(world.rank(), axes), world.rank(), slice, stride);
  if (members.size() == 1) return {};
  const int place = static_cast<int>(std::find(members.begin(), members.end(), world.rank()) - members.begin());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = name.c_str();
  ncclComm_t handle = nullptr;
  check(ncclCommSplit(world.get(), members.front(), place, &handle, &config), "ncclCommSplit");
  return Comm(handle, place, static_cast<int>(members.size()), name, members);
}

// The stages between the ends take part in the split, but get nothing.
static Comm split_ends(const Comm& world, const Mesh& mesh) {
  const std::vector<int> stages = mesh.group(world.rank(), "pp");
  const std::vector<int> ends = {stages.front(), stages.back()};
  const bool last = world.rank() == ends[1], member = last || world.rank() == ends[0];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "ends";
  ncclComm_t handle = nullptr;
  check(ncclCommSplit(world.get(), member ? ends[0] : NCCL_SPLIT_NOCOLOR, last ? 1 : 0, &handle, &config),
        "ncclCommSplit");
  return member ? Comm(handle, last ? 1 : 0, 2, "ends", ends) : Comm();
}

Communicators make_communicators(const ncclUniqueId& id, int rank, const Mesh& mesh, int hybrid_shard,
                                 int64_t kv_heads) {
  Communicators all;
  const Shape& shape = mesh.shape();
  const int world = shape.world();
  if (world == 1) return all;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "world";
  ncclComm_t handle = nullptr;
  check(ncclCommInitRankConfig(&handle, world, id, rank, &config), "ncclCommInitRankConfig");
  std::vector<int> everyone(static_cast<size_t>(world));
  for (int i = 0; i < world; ++i) everyone[static_cast<size_t>(i)] = i;
  all.world = Comm(handle, rank, world, "world", everyone);

  all.data = split(all.world, mesh, "dp-cp", shape.cp > 1 ? "dp-cp" : "dp");
  if (hybrid_shard > 0) {
    all.shard = split(all.world, mesh, "dp-cp", "dp-shard", hybrid_shard);
    all.replicas = split(all.world, mesh, "dp-cp", "dp-replicas", hybrid_shard, true);
  }
  all.groups.tp = split(all.world, mesh, "tp", "tp");
  all.pp = split(all.world, mesh, "pp", "pp");
  all.groups.cp = split(all.world, mesh, "cp", "cp");
  all.model = split(all.world, mesh, "tp-pp", "model");
  if (kv_heads > 0 && kv_heads < shape.tp)
    all.groups.kv = split(all.world, mesh, "tp", "kv", shape.tp / static_cast<int>(kv_heads));
  if (shape.pp > 1) all.ends = split_ends(all.world, mesh);
  if (shape.ep > 1) {
    all.groups.ep = split(all.world, mesh, "ep", "ep");
    all.experts = split(all.world, mesh, "edp", "edp");
  }
  return all;
}

}  // namespace train
