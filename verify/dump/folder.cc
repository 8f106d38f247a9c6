// SPDX-License-Identifier: MIT

#include "verify/dump/folder.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
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

constexpr int kMostRanks = 10'000'000;

// By name, so that what is told does not depend on the file system.
std::vector<std::filesystem::path> in_order(const std::filesystem::path& folder, std::error_code& failed) {
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    paths.push_back(at->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What is in a folder and no part of a dump: passed over, and said, for it may have been meant as one.
class Strangers {
 public:
  void add(const std::string& name) {
    if (count_++ < kNamed) names_ += (names_.empty() ? "" : ", ") + name;
  }
  void tell(const std::filesystem::path& folder, const std::string& expected, std::vector<std::string>& notes) const {
    if (count_ == 0) return;
    const std::string more = count_ > kNamed ? " and " + std::to_string(count_ - kNamed) + " more" : "";
    notes.push_back(folder.string() + ": passed over " + names_ + more + "; in this folder a dump has " + expected);
  }

 private:
  static constexpr size_t kNamed = 5;
  size_t count_ = 0;
  std::string names_;
};

std::optional<Error> list_step(const std::filesystem::path& path, std::map<int, std::filesystem::path>& ranks,
                               std::vector<std::string>& notes) {
  std::error_code failed;
  Strangers strangers;
  for (const auto& entry : in_order(path, failed)) {
    const std::string name = entry.filename().string();
    if (number_in(name, "rank", kPartEnd)) {
      notes.push_back(entry.string() + " was left by a rank that was ended before its dump was complete");
      continue;
    }
    const std::optional<int64_t> rank = number_in(name, "rank", kFileEnd);
    if (!rank || *rank > kMostRanks) {
      strangers.add(name);
      continue;
    }
    if (const auto [at, fresh] = ranks.emplace(static_cast<int>(*rank), entry); !fresh)
      return Error{entry.string() + " and " + at->second.filename().string() + " are both of rank " +
                   std::to_string(*rank)};
  }
  if (failed) return Error{path.string() + ": the folder cannot be read: " + failed.message()};
  strangers.tell(path, "files rank00000.safetensors, one a rank", notes);
  if (ranks.empty()) notes.push_back(path.string() + ": passed over, for it holds no rank's file");
  return std::nullopt;
}

bool is_step(const std::filesystem::path& folder) {
  std::error_code failed;
  const auto paths = in_order(folder, failed);
  return std::any_of(paths.begin(), paths.end(), [](const auto& path) {
    return number_in(path.filename().string(), "rank", kFileEnd).has_value();
  });
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

// All files of a step say the same of it, or nothing.
std::string computed_in_fault(const Safetensors& file, std::optional<Dtype>& computed_in) {
  const auto found = file.metadata().find("computed_in");
  if (found == file.metadata().end()) return "";
  const std::optional<Dtype> dtype = dtype_named(found->second);
  if (!dtype || !is_float(*dtype))
    return file.path() + ": its metadata say computed_in \"" + found->second +
           "\"; expected F64, F32, F16 or BF16, the type of the activations";
  if (computed_in && *computed_in != *dtype)
    return file.path() + ": its metadata say computed_in " + found->second + ", those of another rank " +
           name_of(*computed_in) + "; the folder holds the dumps of two runs, use an empty one for each";
  computed_in = dtype;
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
  Strangers strangers;
  for (const auto& entry : in_order(path, failed)) {
    const std::string name = entry.filename().string();
    const std::optional<int64_t> step = number_in(name, "step", "");
    std::error_code unknown;
    if (!step || !std::filesystem::is_directory(entry, unknown)) {
      if (name != kMetricsFile) strangers.add(name);
      continue;
    }
    auto [at, fresh] = folder.steps.try_emplace(*step);
    if (!fresh) return Error{entry.string() + ": there is another folder for step " + std::to_string(*step)};
    if (const auto error = list_step(entry, at->second, folder.notes)) return *error;
  }
  if (failed) return Error{path.string() + ": the folder cannot be read: " + failed.message()};
  std::erase_if(folder.steps, [](const auto& each) { return each.second.empty(); });
  strangers.tell(path, "metrics.jsonl and folders step000001, one a step", folder.notes);
  const std::filesystem::path lines = path / kMetricsFile;
  if (std::filesystem::exists(lines, failed)) {
    if (!std::filesystem::is_regular_file(lines, failed))
      return Error{lines.string() + ": expected a file of lines of JSON"};
    Result<std::vector<Metrics>> metrics = read_metrics(lines.string(), read_all(lines), folder.notes, folder.missing);
    if (!metrics) return Error{metrics.error()};
    folder.metrics = std::move(*metrics);
  }
  if (folder.steps.empty() && folder.metrics.empty() && is_step(path))
    return Error{path.string() + ": this is one step of a dump; name the folder that it is in"};
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
    if (fault.empty()) fault = computed_in_fault(*file, out.computed_in);
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
    if (!size || *size <= highest || *size > kMostRanks)
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
