// SPDX-License-Identifier: MIT
//
// See settings.h.

#include "reference/nccl/settings.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

namespace lockstep::nccl {
namespace {

using Values = std::map<std::string, std::string>;

void read(const std::string& path, Values& values) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t equals = line.find('=');
    if (line.empty() || line[0] == '#' || equals == std::string::npos) continue;
    const size_t first = line.find_first_not_of(" \t");
    const size_t last = line.find_last_not_of(" \t", equals - 1);
    if (first >= equals) continue;
    values.emplace(line.substr(first, last - first + 1), line.substr(equals + 1));
  }
}

const Values& from_files() {
  static const Values* const all = [] {  // never destroyed: threads may run while the process exits
    auto* values = new Values;
    const char* named = std::getenv("NCCL_CONF_FILE");
    const char* home = std::getenv("HOME");
    if (named != nullptr && *named != '\0')
      read(named, *values);
    else if (home != nullptr)
      read(std::string(home) + "/.nccl.conf", *values);
    read("/etc/nccl.conf", *values);
    return values;
  }();
  return *all;
}

}  // namespace

const char* setting(const char* name) {
  if (const char* value = std::getenv(name)) return value;
  const auto found = from_files().find(name);
  return found == from_files().end() ? nullptr : found->second.c_str();
}

int int_setting(const char* name, int otherwise) {
  const char* text = setting(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 0);
  return *end == '\0' ? static_cast<int>(value) : otherwise;
}

}  // namespace lockstep::nccl
