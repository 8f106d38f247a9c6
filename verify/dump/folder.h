// SPDX-License-Identifier: MIT
//
// A dump folder, as a reader sees it: which steps there are, and which ranks' files in each. Files are opened a step at
// a time, since a folder may hold more of them than a process may map.

#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interpose/trace/result.h"
#include "verify/dump/metrics.h"
#include "verify/dump/placement.h"
#include "verify/dump/safetensors.h"

namespace lockstep::dump {

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kPlacementPrefix = "placement:";  // and the tensor's name: its key in __metadata__

std::string step_folder_name(int64_t step);  // "step000003"
std::string rank_file_name(int rank);        // "rank00007.safetensors"

struct DumpFolder {
  std::filesystem::path path;
  std::map<int64_t, std::map<int, std::filesystem::path>> steps;  // step -> rank -> file
  std::vector<Metrics> metrics;                                   // one a step and rank, by step, then by rank
  std::vector<std::string> notes;                                 // what was passed over, and why
  std::vector<std::string> missing;                               // what was there once, or was meant to be
};

Result<DumpFolder> open_folder(const std::filesystem::path& path);

// A tensor as a rank holds it.
struct Shard {
  int rank;
  const StoredTensor* stored;
  Placement placement;
};

struct DumpStep {
  int64_t number;
  int world_size;
  std::vector<int> missing_ranks;
  std::optional<Dtype> computed_in;  // as the files say: what the noise in their floats is that of
  std::vector<Safetensors> files;
  std::map<std::string, std::vector<Shard>> tensors;  // shards by rank
};

Result<DumpStep> open_step(const DumpFolder& folder, int64_t step);

// The placement that a file gives for one of its tensors.
Result<Placement> placement_in(const Safetensors& file, const StoredTensor& tensor);

}  // namespace lockstep::dump
