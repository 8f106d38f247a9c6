// SPDX-License-Identifier: MIT

#include "reference/train/run/control_group.h"

#include <charconv>
#include <cstdint>
#include <fstream>

namespace train {
namespace {

// Nothing for "max", and for what is no number.
std::optional<double> number_in(const std::string& file) {
  std::ifstream in(file);
  std::string word;
  if (!(in >> word)) return std::nullopt;
  uint64_t value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || stop != word.data() + word.size()) return std::nullopt;
  return static_cast<double>(value);
}

// The group and all that it is in.
void tighten(std::optional<MemoryLimit>& limit, const std::string& mount, std::string group, const std::string& name) {
  while (true) {
    if (group == "/") group.clear();
    const std::string file = mount + group + '/' + name;
    if (const auto bytes = number_in(file); bytes && (!limit || *bytes < limit->bytes)) limit = {*bytes, file};
    const size_t parent = group.rfind('/');
    if (parent == std::string::npos) return;
    group.erase(parent);
  }
}

bool has_word(const std::string& list, const std::string& word) {
  return (',' + list + ',').find(',' + word + ',') != std::string::npos;
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const std::string& groups, const std::string& root) {
  std::optional<MemoryLimit> limit;
  std::ifstream in(groups);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) tighten(limit, root, group, "memory.max");
    if (has_word(controllers, "memory")) tighten(limit, root + "/memory", group, "memory.limit_in_bytes");
  }
  return limit;
}

}  // namespace train
