// SPDX-License-Identifier: MIT
//
// NCCL's way of telling what went wrong: the last warning of the process is kept for ncclGetLastError, and printed in
// NCCL's shape where NCCL_DEBUG asks for warnings.

#pragma once

namespace lockstep::nccl {

__attribute__((format(printf, 1, 2))) void warn(const char* format, ...);
// As warn(), and once on stderr whatever NCCL_DEBUG says: the program wants something that is not there.
__attribute__((format(printf, 1, 2))) void warn_loudly(const char* format, ...);
const char* last_warning();

}  // namespace lockstep::nccl
