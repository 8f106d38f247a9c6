// SPDX-License-Identifier: MIT
//
// Reduction operators made at run time: ncclRedOpCreatePreMulSum's "multiply every input by this scalar, then sum".
// They belong to one communicator of one rank; ranks may use different scalars. Their numbers are mixed with the
// communicator's address, as in NCCL, so that one used on the wrong communicator is found out.

#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "interpose/abi/nccl.h"

namespace lockstep::nccl {

struct UserOp {
  bool alive = false;
  ncclDataType_t dtype = ncclInt8;
  uint64_t scale = 0;              // copied when the operator was made, or
  const void* scale_at = nullptr;  // read when an operation starts
};

class UserOps {
 public:
  // `owner` is what the numbers are mixed with.
  ncclRedOp_t add(const void* owner, const UserOp& op);
  bool remove(const void* owner, ncclRedOp_t op);             // false: unknown
  bool find(const void* owner, ncclRedOp_t op, UserOp& out);  // false: unknown

 private:
  UserOp* at(const void* owner, ncclRedOp_t op);
  std::mutex mutex_;
  std::vector<UserOp> ops_;
};

}  // namespace lockstep::nccl
