// SPDX-License-Identifier: MIT
//
// See redop.h, and the calls for it.

#include "reference/nccl/redop.h"

#include <algorithm>
#include <cstring>

#include "reference/nccl/calls.h"
#include "reference/nccl/checks.h"

namespace lockstep::nccl {
namespace {

// An involution on the numbers of operators, another for every owner: mixing twice gives the number back. The numbers
// of the built-in operators, and what would become one, stay as they are.
int mixed(const void* owner, int op) {
  const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(owner));
  const auto pattern = static_cast<int>((address * 0xd6e8feb86659fd93ull) >> 33);  // 31 bits
  const int other = op ^ pattern;
  return op < ncclNumOps || other < ncclNumOps ? op : other;
}

}  // namespace

ncclRedOp_t UserOps::add(const void* owner, const UserOp& op) {
  const std::lock_guard lock(mutex_);
  auto slot = std::find_if(ops_.begin(), ops_.end(), [](const UserOp& o) { return !o.alive; });
  if (slot == ops_.end()) slot = ops_.insert(slot, UserOp{});
  *slot = op;
  slot->alive = true;
  return static_cast<ncclRedOp_t>(mixed(owner, static_cast<int>(ncclNumOps + (slot - ops_.begin()))));
}

UserOp* UserOps::at(const void* owner, ncclRedOp_t op) {
  const auto index = static_cast<size_t>(mixed(owner, op)) - static_cast<size_t>(ncclNumOps);
  return index < ops_.size() && ops_[index].alive ? &ops_[index] : nullptr;
}

bool UserOps::remove(const void* owner, ncclRedOp_t op) {
  const std::lock_guard lock(mutex_);
  UserOp* const found = at(owner, op);
  if (found != nullptr) found->alive = false;
  return found != nullptr;
}

bool UserOps::find(const void* owner, ncclRedOp_t op, UserOp& out) {
  const std::lock_guard lock(mutex_);
  const UserOp* const found = at(owner, op);
  if (found != nullptr) out = *found;
  return found != nullptr;
}

ncclResult_t run(Tag<Fn::RedOpCreatePreMulSum>, ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                 ncclScalarResidence_t residence, ncclComm_t handle) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("ncclRedOpCreatePreMulSum", handle, comm); result != ncclSuccess)
    return result;
  if (dtype < 0 || dtype >= ncclNumTypes) return ncclInternalError;
  if (op == nullptr || scalar == nullptr) {
    warn("ncclRedOpCreatePreMulSum : %s argument is NULL", op == nullptr ? "op" : "scalar");
    return ncclInvalidArgument;
  }
  UserOp made;
  made.dtype = dtype;
  if (residence == ncclScalarHostImmediate)
    std::memcpy(&made.scale, scalar, abi::dtype_size(dtype));
  else
    made.scale_at = scalar;
  *op = comm->user_ops.add(handle, made);
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::RedOpDestroy>, ncclRedOp_t op, ncclComm_t handle) {
  const char* wrong = nullptr;
  std::shared_ptr<Comm> comm;
  if (op >= 0 && op < ncclNumOps)
    wrong = "operator is a NCCL builtin.";
  else if (op < 0)
    wrong = " operator is garbage.";
  else if (handle == nullptr)
    wrong = "invalid communicator passed.";
  else if (comm = find_comm(handle); !comm)
    wrong = "invalid communicator passed.";
  else if (!comm->user_ops.remove(handle, op))
    wrong = "operator unknown to this communicator.";
  if (wrong == nullptr) return ncclSuccess;
  warn("ncclRedOpDestroy : %s", wrong);
  return ncclInvalidArgument;
}

}  // namespace lockstep::nccl
