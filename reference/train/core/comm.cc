// SPDX-License-Identifier: MIT

#include "reference/train/core/comm.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace train {

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "lockstep-train: %s: %s (%s)\n", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
  std::_Exit(1);
}

ncclDataType_t nccl_type(Dtype dtype) {
  return dtype == Dtype::f64 ? ncclFloat64 : dtype == Dtype::f32 ? ncclFloat32 : ncclBfloat16;
}

Comm::Comm(ncclComm_t handle, int rank, int size, std::string name, std::vector<int> world_ranks)
    : handle_(handle), rank_(rank), size_(size), name_(std::move(name)), world_ranks_(std::move(world_ranks)) {}

Comm::~Comm() {
  if (handle_ != nullptr) check(ncclCommDestroy(handle_), "ncclCommDestroy");
}

Comm::Comm(Comm&& other) noexcept { *this = std::move(other); }
Comm& Comm::operator=(Comm&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(rank_, other.rank_);
  std::swap(size_, other.size_);
  std::swap(name_, other.name_);
  std::swap(world_ranks_, other.world_ranks_);
  return *this;
}

static void copy(View to, View from, const Stream& stream) {
  if (to.data != from.data)
    check(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice, stream.get()), "cudaMemcpyAsync");
}

void Comm::all_reduce(View view, ncclRedOp_t op, const Stream& stream) const {
  if (size_ == 1) return;
  check(ncclAllReduce(view.data, view.data, static_cast<size_t>(view.size), nccl_type(view.dtype), op, handle_,
                      stream.get()),
        "ncclAllReduce");
}

void Comm::all_gather(View from, View to, const Stream& stream) const {
  if (size_ == 1) return copy(to, from, stream);
  check(ncclAllGather(from.data, to.data, static_cast<size_t>(from.size), nccl_type(from.dtype), handle_, stream.get()),
        "ncclAllGather");
}

void Comm::reduce_scatter(View from, View to, ncclRedOp_t op, const Stream& stream) const {
  if (size_ == 1) return copy(to, from, stream);
  check(ncclReduceScatter(from.data, to.data, static_cast<size_t>(to.size), nccl_type(to.dtype), op, handle_,
                          stream.get()),
        "ncclReduceScatter");
}

void Comm::broadcast(View view, int root, const Stream& stream) const {
  if (size_ == 1) return;
  check(ncclBroadcast(view.data, view.data, static_cast<size_t>(view.size), nccl_type(view.dtype), root, handle_,
                      stream.get()),
        "ncclBroadcast");
}

void Comm::send(View view, int peer, const Stream& stream) const {
  check(ncclSend(view.data, static_cast<size_t>(view.size), nccl_type(view.dtype), peer, handle_, stream.get()),
        "ncclSend");
}

void Comm::receive(View view, int peer, const Stream& stream) const {
  check(ncclRecv(view.data, static_cast<size_t>(view.size), nccl_type(view.dtype), peer, handle_, stream.get()),
        "ncclRecv");
}

void Comm::all_to_all(View from, View to, const Stream& stream) const {
  if (size_ == 1) return copy(to, from, stream);
  const int64_t part = from.size / size_;
  const Group group;
  for (int peer = 0; peer < size_; ++peer) {
    send(from.part(peer * part, part), peer, stream);
    receive(to.part(peer * part, part), peer, stream);
  }
}

Group::Group() { check(ncclGroupStart(), "ncclGroupStart"); }
Group::~Group() { check(ncclGroupEnd(), "ncclGroupEnd"); }

}  // namespace train
