// SPDX-License-Identifier: MIT
//
// Feeds the reader of dump folders with names: an input is a list of lines, each a thing to be made. The first byte
// says what ("d" a folder, "f" a file of that text, "s" a sound file of a rank, "m" a line of metrics), the rest is its
// name, with a "/" at most once. Whatever is made, the reader ends with a folder or a sentence; what it takes for a
// rank's file is one by its name, and what it passes over it says.

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "verify/dump/folder.h"
#include "verify/dump/writer.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

// In memory where the machine has such a place; gone at the end.
struct Root {
  std::string path = fs::path(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path()) / "fuzz-XXXXXX";
  Root() {
    if (mkdtemp(path.data()) == nullptr) abort();
  }
  ~Root() { fs::remove_all(path); }
};
const std::string& root() {
  static const Root made;
  return made.path;
}

// A rank's file, made once.
const std::string& sound_file() {
  static const std::string path = [] {
    const std::string folder = root() + "/sound";
    dump::Writer writer(folder, 0, 1);
    const float value = 1;
    writer.begin_step(1);
    writer.tensor("param/w", dump::Dtype::f32, &value, {1}, {{1}, {}, {}, dump::Placement::Kind::replica});
    writer.end_step();
    return folder + "/step000001/rank00000.safetensors";
  }();
  return path;
}

// Inside the folder, and nowhere else.
bool stays_inside(const std::string& name) {
  const size_t slash = name.find('/');
  const std::string first = name.substr(0, slash), second = slash == std::string::npos ? "x" : name.substr(slash + 1);
  for (const std::string& part : {first, second})
    if (part.empty() || part == "." || part == ".." || part.size() > 200 ||
        part.find_first_of(std::string("/\0", 2)) != std::string::npos)
      return false;
  return true;
}

void make(const std::string& folder, char what, const std::string& name) {
  if (what == 'm') {
    std::ofstream(folder + "/metrics.jsonl", std::ios::app) << name << '\n';
    return;
  }
  if (!stays_inside(name)) return;
  const fs::path path = fs::path(folder) / name;
  std::error_code failed;
  fs::create_directories(what == 'd' ? path : path.parent_path(), failed);
  if (failed) return;
  if (what == 's') fs::create_hard_link(sound_file(), path, failed);
  if (what == 'f') std::ofstream(path) << name;
}

// The digits of a name, as people read them.
std::string digits_of(const std::string& name) {
  std::string digits;
  std::copy_if(name.begin(), name.end(), std::back_inserter(digits), [](char c) { return c >= '0' && c <= '9'; });
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return digits;
}

void check(const dump::DumpFolder& read, const std::string& folder) {
  std::set<fs::path> taken;
  for (const auto& [step, ranks] : read.steps)
    for (const auto& [rank, path] : ranks) {
      if (digits_of(path.parent_path().filename()) != std::to_string(step)) abort();
      if (digits_of(path.filename().string()) != std::to_string(rank)) abort();
      if (!fs::exists(path)) abort();
      taken.insert(path);
    }
  size_t others = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory() && entry.path().filename() != dump::kMetricsFile)
      others += taken.count(entry.path()) == 0;
  if (others > 0 && read.notes.empty()) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string folder = root() + "/dump";
  fs::create_directories(folder);
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) make(folder, line[0], line.substr(1));
  if (const Result<dump::DumpFolder> read = dump::open_folder(folder)) {
    check(*read, folder);
    for (const auto& [step, ranks] : read->steps) (void)dump::open_step(*read, step);
  }
  fs::remove_all(folder);
  return 0;
}
