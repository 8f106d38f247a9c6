// SPDX-License-Identifier: MIT
//
// How a program was linked to CUDA and NCCL, read from its ELF file: LD_LIBRARY_PATH puts the host runtime in front of
// the real libraries only where the dynamic loader looks for them at all.

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct Linking {
  std::vector<std::string> needed;  // DT_NEEDED
  bool rpath = false;               // DT_RPATH without DT_RUNPATH: searched before LD_LIBRARY_PATH
  bool static_cudart = false;
  bool static_nccl = false;

  bool needs(const std::string& prefix) const;
};

// Nothing: no 64-bit ELF program for this machine's byte order (a script, say), or it cannot be read.
std::optional<Linking> linking_of(const std::string& path);

// Why the host runtime cannot take the place of the real libraries in this program, and what to do; empty: it can.
std::string host_obstacle(const std::string& path, const Linking& linking);

}  // namespace lockstep
