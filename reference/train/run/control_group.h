// SPDX-License-Identifier: MIT
//
// What a batch system or a container lets this process have. Such limits are control groups': a process is in a group,
// that is in another one, and the tightest limit on the way to the root holds. In version 2 the file is memory.max, in
// version 1, whose controllers have hierarchies of their own, memory.limit_in_bytes. Inside a container the group's
// path may be told as it is outside, where the mounted tree begins at the container's own group: files that are not
// there limit nothing.

#pragma once

#include <optional>
#include <string>

namespace train {

struct MemoryLimit {
  double bytes = 0;
  std::string file;  // that says so
};

// `groups`: a line a hierarchy, "4:memory:/a/b", or "0::/a/b" for version 2. `root`: where the hierarchies are mounted.
std::optional<MemoryLimit> memory_limit(const std::string& groups = "/proc/self/cgroup",
                                        const std::string& root = "/sys/fs/cgroup");

}  // namespace train
