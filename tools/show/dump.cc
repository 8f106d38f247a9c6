// SPDX-License-Identifier: MIT

#include "tools/show/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/printable.h"
#include "tools/say.h"
#include "verify/dump/folder.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

struct Statistics {
  int64_t finite = 0, nans = 0, infinities = 0, zeros = 0;
  double least = 0, most = 0, mean = 0, norm = 0;  // of what is finite
};

Statistics statistics_of(const dump::StoredTensor& tensor) {
  Statistics out;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  long double sum = 0, squares = 0;
  std::vector<double> block(4096);
  const size_t bytes = dump::size_of(tensor.dtype);
  const auto elements = static_cast<size_t>(tensor.elements());
  for (size_t begin = 0; begin < elements; begin += block.size()) {
    const size_t count = std::min(block.size(), elements - begin);
    dump::to_double(tensor.dtype, tensor.data + begin * bytes, count, block.data());
    for (size_t i = 0; i < count; i++) {
      const double value = block[i];
      out.nans += std::isnan(value);
      out.infinities += std::isinf(value);
      if (!std::isfinite(value)) continue;
      out.finite++;
      out.zeros += value == 0;
      low = std::min(low, value);
      high = std::max(high, value);
      sum += value;
      squares += static_cast<long double>(value) * value;
    }
  }
  if (out.finite) {
    out.least = low;
    out.most = high;
    out.mean = static_cast<double>(sum / out.finite);
    out.norm = static_cast<double>(std::sqrt(squares));
  }
  return out;
}

std::string ranges_text(const std::vector<dump::Range>& ranges) {
  constexpr size_t kMost = 6;
  std::string text;
  for (size_t i = 0; i < ranges.size() && i < kMost; i++)
    text += fmt::format("{}{}:{}", i ? ", " : "", ranges[i][0], ranges[i][1]);
  return text + (ranges.size() > kMost ? fmt::format(", ... {} in all", ranges.size()) : "");
}

std::string placement_words(const dump::Placement& placement) {
  const std::string kind = dump::name_of(placement.kind);
  if (!placement.flat.empty())
    return fmt::format("{}, elements {} of {}", kind, ranges_text(placement.flat), dump::shape_text(placement.global));
  if (!placement.slice.empty())
    return fmt::format("{}, [{}] of {}", kind, ranges_text(placement.slice), dump::shape_text(placement.global));
  return kind + ", whole";
}

std::string statistics_words(const Statistics& s) {
  std::string text =
      s.finite ? fmt::format("min {:.6g}, max {:.6g}, mean {:.6g}, norm {:.6g}", s.least, s.most, s.mean, s.norm) : "";
  if (s.finite && s.zeros == s.finite) text = "all zeros";
  const auto add = [&](int64_t count, const char* what) {
    if (count) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(s.nans, "NaN");
  add(s.infinities, "infinite");
  return text.empty() ? "no elements" : text;
}

std::string as_text(const dump::Safetensors& file, const std::vector<dump::Placement>& placements) {
  std::string text = printable(file.path()) + "\n";
  for (const auto& [key, value] : file.metadata())
    if (key.rfind(dump::kPlacementPrefix, 0) != 0)
      text += fmt::format("  {:<14} {}\n", printable(key), printable(value));
  uint64_t bytes = 0;
  size_t width = 0;
  for (const dump::StoredTensor& tensor : file.tensors()) {
    bytes += tensor.bytes;
    width = std::max(width, printable(tensor.name).size());
  }
  text += fmt::format("  {:<14} {} ({} bytes)\n\n", "tensors", file.tensors().size(), bytes);
  for (size_t i = 0; i < file.tensors().size(); i++) {
    const dump::StoredTensor& tensor = file.tensors()[i];
    text += fmt::format("  {:<{}}  {:<4} {:<14} {}; {}\n", printable(tensor.name), width, dump::name_of(tensor.dtype),
                        dump::shape_text(tensor.shape), placement_words(placements[i]),
                        statistics_words(statistics_of(tensor)));
  }
  return text;
}

std::string as_json(const dump::Safetensors& file, const std::vector<dump::Placement>& placements) {
  ordered_json out;
  out["file"] = file.path();
  out["metadata"] = ordered_json::object();
  for (const auto& [key, value] : file.metadata())
    if (key.rfind(dump::kPlacementPrefix, 0) != 0) out["metadata"][key] = value;
  out["tensors"] = ordered_json::array();
  for (size_t i = 0; i < file.tensors().size(); i++) {
    const dump::StoredTensor& tensor = file.tensors()[i];
    const Statistics s = statistics_of(tensor);
    const auto known = [&](double value) {
      return s.finite && std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
    };
    out["tensors"].push_back({{"name", tensor.name},
                              {"dtype", dump::name_of(tensor.dtype)},
                              {"shape", tensor.shape},
                              {"offset", tensor.offset},
                              {"placement", ordered_json::parse(dump::placement_text(placements[i]))},
                              {"min", known(s.least)},
                              {"max", known(s.most)},
                              {"mean", known(s.mean)},
                              {"norm", known(s.norm)},
                              {"zeros", s.zeros},
                              {"nan", s.nans},
                              {"infinite", s.infinities}});
  }
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

bool is_tensor_file(const std::string& path) {
  const std::string end = ".safetensors";
  return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
}

int show_tensor_file(const std::string& path, bool json) {
  const Result<dump::Safetensors> file = dump::Safetensors::open(path);
  if (!file) {
    say("lockstep show: {}\n", printable(file.error()));
    return 2;
  }
  std::vector<dump::Placement> placements;
  for (const dump::StoredTensor& tensor : file->tensors()) {
    const Result<dump::Placement> placement = dump::placement_in(*file, tensor);
    if (!placement) {
      say("lockstep show: {}\n", printable(placement.error()));
      return 2;
    }
    placements.push_back(*placement);
  }
  const std::string text = json ? as_json(*file, placements) : as_text(*file, placements);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace lockstep
