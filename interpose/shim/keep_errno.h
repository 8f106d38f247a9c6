// SPDX-License-Identifier: MIT
//
// A hook leaves errno as the job had it. The plain way of operation.h touches it nowhere itself; whatever that calls
// out of line and may make a system call, ask the driver or unwind keeps it by one of these.

#pragma once

#include <errno.h>

namespace lockstep::shim {

class KeepErrno {
 public:
  KeepErrno() : kept_(errno) {}
  ~KeepErrno() { errno = kept_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int kept_;
};

}  // namespace lockstep::shim
