// SPDX-License-Identifier: MIT
//
// What the two halves of the writer share: backing a part of the file by disk.

#pragma once

#include "interpose/trace/writer.h"

namespace lockstep::trace {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kSegmentSlots = kSegmentBytes / sizeof(Record);

int allocate(const Trace& trace, uint64_t offset, uint64_t bytes);  // 0, or an errno
void touch(void* at, uint64_t bytes);

}  // namespace lockstep::trace
