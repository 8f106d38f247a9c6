// SPDX-License-Identifier: MIT
//
// A communicator and this rank's place in it. Groups of one rank have none: every function here is then a copy or
// nothing, so that modes need not ask, and no call goes to NCCL (the call counts of the modes leave such groups out).

#pragma once

#include <nccl.h>

#include <string>
#include <vector>

#include "reference/train/core/device.h"

namespace train {

void check(ncclResult_t result, const char* what);

class Comm {
 public:
  Comm() = default;  // a group of one
  Comm(ncclComm_t handle, int rank, int size, std::string name, std::vector<int> world_ranks);
  ~Comm();
  Comm(Comm&& other) noexcept;
  Comm& operator=(Comm&& other) noexcept;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  ncclComm_t get() const { return handle_; }

  // In place where `from` and `to` are one view. Counts are whole-buffer: all_gather's `to` and reduce_scatter's `from`
  // have size() times the elements of the other.
  void all_reduce(View view, ncclRedOp_t op, const Stream& stream) const;
  void all_gather(View from, View to, const Stream& stream) const;
  void reduce_scatter(View from, View to, ncclRedOp_t op, const Stream& stream) const;
  void broadcast(View view, int root, const Stream& stream) const;
  void send(View view, int peer, const Stream& stream) const;
  void receive(View view, int peer, const Stream& stream) const;
  void all_to_all(View from, View to, const Stream& stream) const;  // grouped sends and receives of size / size() each

 private:
  ncclComm_t handle_ = nullptr;
  int rank_ = 0, size_ = 1;
  std::string name_;
  std::vector<int> world_ranks_;
};

ncclDataType_t nccl_type(Dtype dtype);

// ncclGroupStart ... ncclGroupEnd.
class Group {
 public:
  Group();
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
};

}  // namespace train
