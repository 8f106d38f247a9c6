// SPDX-License-Identifier: MIT

#include "verify/dump/folder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>

namespace lockstep::dump {
namespace {

constexpr const char* kFileEnd = ".safetensors";
constexpr const char* kPartEnd = ".safetensors.part";

// "step000012" with these around the digits is 12; numbers, never text, are what is compared: rank 11 is not before
// rank 2.
std::optional<int64_t> number_in(const std::string& name, const std::string& before, const std::string& after) {
  if (name.size() <= before.size() + after.size() || name.rfind(before, 0) != 0 ||
      name.compare(name.size() - after.size(), after.size(), after) != 0)
    return std::nullopt;
  int64_t number = 0;
  for (size_t i = before.size(); i < name.size() - after.size(); i++) {
    if (name[i] < '0' || name[i] > '9' || number > 1'000'000'000'000) return std::nullopt;
    number = number * 10 + (name[i] - '0');
  }
  return number;
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<Error> list_step(const std::filesystem::path& path, std::map<int, std::filesystem::path>& ranks,
                               std::vector<std::string>& notes) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(path, failed)) {
    const std::string name = entry.path().filename().string();
    if (number_in(name, "rank", kPartEnd))
      notes.push_back(entry.path().string() + " was left by a rank that was ended before its dump was complete");
    const std::optional<int64_t> rank = number_in(name, "rank", kFileEnd);
    if (!rank || *rank > std::numeric_limits<int>::max()) continue;
    if (const auto [at, fresh] = ranks.emplace(static_cast<int>(*rank), entry.path()); !fresh)
      return Error{entry.path().string() + " and " + at->second.filename().string() + " are both of rank " +
                   std::to_string(*rank)};
  }
  if (failed) return Error{path.string() + ": the folder cannot be read: " + failed.message()};
  return std::nullopt;
}

// A number in the metadata that must be what the file's place says.
std::string metadata_fault(const Safetensors& file, const std::string& key, int64_t expected) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end() || found->second == std::to_string(expected)) return "";
  return file.path() + ": its metadata say " + key + " " + found->second + ", its place in the folder " +
         std::to_string(expected) + "; was it moved, or left by another run?";
}

// A placement whose tensor is not there is a misspelt one, and its tensor would be taken for something else.
std::string lost_placement_fault(const Safetensors& file) {
  const std::string prefix = kPlacementPrefix;
  for (const auto& [key, value] : file.metadata())
    if (key.rfind(prefix, 0) == 0 && !file.find(key.substr(prefix.size())))
      return file.path() + ": its metadata have \"" + key + "\", but there is no tensor \"" +
             key.substr(prefix.size()) + "\" in it";
  return "";
}

std::string version_fault(const Safetensors& file) {
  const auto found = file.metadata().find("lockstep_dump");
  if (found == file.metadata().end() || found->second == "1") return "";
  return file.path() + ": a dump of format " + found->second + "; this program knows format 1";
}

}  // namespace

std::string step_folder_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step%06lld", static_cast<long long>(step));
  return text;
}

std::string rank_file_name(int rank) {
  char text[48];
  std::snprintf(text, sizeof text, "rank%05d%s", rank, kFileEnd);
  return text;
}

Result<DumpFolder> open_folder(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_directory(path, failed))
    return Error{path.string() + ": expected a dump folder, found " +
                 (std::filesystem::exists(path, failed) ? "a file" : "nothing")};
  DumpFolder folder;
  folder.path = path;
  for (const auto& entry : std::filesystem::directory_iterator(path, failed)) {
    const std::optional<int64_t> step = number_in(entry.path().filename().string(), "step", "");
    if (!step || !entry.is_directory(failed)) continue;
    auto [at, fresh] = folder.steps.try_emplace(*step);
    if (!fresh) return Error{entry.path().string() + ": there is another folder for step " + std::to_string(*step)};
    if (const auto error = list_step(entry.path(), at->second, folder.notes)) return *error;
    if (at->second.empty()) folder.steps.erase(at);
  }
  if (failed) return Error{path.string() + ": the folder cannot be read: " + failed.message()};
  const std::filesystem::path lines = path / kMetricsFile;
  if (std::filesystem::exists(lines, failed)) {
    if (!std::filesystem::is_regular_file(lines, failed))
      return Error{lines.string() + ": expected a file of lines of JSON"};
    Result<std::vector<Metrics>> metrics = read_metrics(lines.string(), read_all(lines), folder.notes);
    if (!metrics) return Error{metrics.error()};
    folder.metrics = std::move(*metrics);
  }
  if (folder.steps.empty() && folder.metrics.empty())
    return Error{path.string() +
                 ": expected a dump folder, but there is neither metrics.jsonl nor step000001/rank00000.safetensors "
                 "or another step in it"};
  return folder;
}

Result<Placement> placement_in(const Safetensors& file, const StoredTensor& tensor) {
  const auto found = file.metadata().find(kPlacementPrefix + tensor.name);
  Result<Placement> placement = placement_of(found == file.metadata().end() ? "{}" : found->second, tensor.shape);
  if (!placement) return Error{file.path() + ": tensor \"" + tensor.name + "\": " + placement.error()};
  return placement;
}

Result<DumpStep> open_step(const DumpFolder& folder, int64_t step) {
  DumpStep out = {};
  out.number = step;
  const auto found = folder.steps.find(step);
  if (found == folder.steps.end()) return Error{folder.path.string() + ": there is no step " + std::to_string(step)};
  std::optional<std::pair<std::string, std::string>> world;  // the first that was said, and by whom
  for (const auto& [rank, path] : found->second) {
    Result<Safetensors> file = Safetensors::open(path);
    if (!file) return Error{file.error()};
    std::string fault = version_fault(*file);
    if (fault.empty()) fault = metadata_fault(*file, "step", step);
    if (fault.empty()) fault = metadata_fault(*file, "rank", rank);
    if (fault.empty()) fault = lost_placement_fault(*file);
    if (!fault.empty()) return Error{fault};
    if (const auto said = file->metadata().find("world_size"); said != file->metadata().end()) {
      if (!world) world = {said->second, path.string()};
      if (world->first != said->second)
        return Error{path.string() + " is of " + said->second + " ranks, " + world->second + " of " + world->first +
                     "; the folder holds the dumps of two runs, use an empty one for each"};
    }
    out.files.push_back(std::move(*file));
  }
  const int highest = found->second.rbegin()->first;
  out.world_size = highest + 1;
  if (world) {
    const std::optional<int64_t> size = number_in(world->first, "", "");
    if (!size || *size <= highest || *size > 10'000'000)
      return Error{world->second + ": its world_size \"" + world->first + "\" is no number of ranks that has a rank " +
                   std::to_string(highest) + "; the folder may hold the dumps of two runs"};
    out.world_size = static_cast<int>(*size);
  }
  for (int rank = 0; rank < out.world_size; rank++)
    if (!found->second.count(rank)) out.missing_ranks.push_back(rank);
  size_t index = 0;
  for (const auto& [rank, path] : found->second) {
    const Safetensors& file = out.files[index++];
    for (const StoredTensor& tensor : file.tensors()) {
      Result<Placement> placement = placement_in(file, tensor);
      if (!placement) return Error{placement.error()};
      out.tensors[tensor.name].push_back({rank, &tensor, std::move(*placement)});
    }
  }
  return out;
}

}  // namespace lockstep::dump
