// SPDX-License-Identifier: MIT

#include "reference/train/run/id_file.h"

#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "reference/train/run/refusal.h"

namespace train {
namespace {

constexpr const char* kMagic = "lockstep-train id 1";
constexpr int64_t kOld = 120;  // seconds by which ranks of one run may begin apart

struct Writer {
  std::string boot, pid_space;
  int64_t pid = 0, started = 0, written = 0;
};
struct IdFile {
  Writer writer;
  ncclUniqueId id;
};

std::string first_line_of(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string pid_space() {
  char link[PATH_MAX];
  const ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link);
  return {link, n > 0 ? static_cast<size_t>(n) : 0};
}

// Field 22 of /proc/PID/stat, counted from the end of the name, which may have spaces in it. -1: no such process.
int64_t start_of(int64_t pid) {
  const std::string line = first_line_of("/proc/" + std::to_string(pid) + "/stat");
  const size_t name = line.rfind(')');
  if (name == std::string::npos) return -1;
  std::istringstream in(line.substr(name + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) in >> word;
  return in ? std::strtoll(word.c_str(), nullptr, 10) : -1;
}

Writer this_process() {
  const int64_t pid = getpid();
  return {first_line_of("/proc/sys/kernel/random/boot_id"), pid_space(), pid, start_of(pid), std::time(nullptr)};
}

[[noreturn]] void refuse_other(const std::string& path) {
  refuse(path, " is there already and is not a meeting place of lockstep-train: name a new file (--id-file)");
}

// "value" of "key=value" in the header.
std::string value_of(const std::string& header, const std::string& key) {
  const size_t at = header.find(key + '=');
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 1;
  return header.substr(begin, header.find(' ', begin) - begin);
}
int64_t number_of(const std::string& header, const std::string& key) {
  return std::strtoll(value_of(header, key).c_str(), nullptr, 10);
}

// Nothing where there is no file, or an empty one. Throws for what is something else.
std::optional<IdFile> parse(const std::string& path) {
  std::error_code failed;
  const std::filesystem::file_status status = std::filesystem::status(path, failed);
  if (!std::filesystem::exists(status)) return std::nullopt;
  if (!std::filesystem::is_regular_file(status)) refuse_other(path);
  std::ifstream in(path, std::ios::binary);
  if (!in || in.peek() == std::ifstream::traits_type::eof()) return std::nullopt;
  std::string magic, header, line;
  std::getline(in, magic);
  while (magic == kMagic && std::getline(in, line) && !line.empty()) header += line + ' ';
  IdFile file;
  if (magic != kMagic || !in.read(file.id.internal, sizeof file.id.internal)) refuse_other(path);
  file.writer = {value_of(header, "boot"), value_of(header, "pid-space"), number_of(header, "pid"),
                 number_of(header, "started"), number_of(header, "written")};
  return file;
}

bool visible_from_here(const Writer& writer, const Writer& here) {
  return !writer.boot.empty() && writer.boot == here.boot && writer.pid_space == here.pid_space;
}
bool lives(const Writer& writer) { return start_of(writer.pid) == writer.started; }

}  // namespace

void write_id(const std::string& path, const ncclUniqueId& id) {
  const Writer me = this_process();
  const auto old = parse(path);
  if (old && visible_from_here(old->writer, me) && lives(old->writer) && old->writer.pid != me.pid)
    refuse(path, " is where the ranks of process ", old->writer.pid,
           " meet, which is running: name another file (--id-file)");
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << kMagic << "\nboot=" << me.boot << " pid-space=" << me.pid_space << "\npid=" << me.pid
      << " started=" << me.started << "\nwritten=" << me.written << "\n\n";
  out.write(id.internal, sizeof id.internal);
  out.close();
  std::error_code failed;
  if (out) std::filesystem::rename(part, path, failed);
  if (!out || failed) refuse("cannot write ", out ? path : part, ", where the ranks should meet (--id-file)");
}

ncclUniqueId read_id(const std::string& path, double patience) {
  const Writer me = this_process();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience);
  while (true) {
    const auto found = parse(path);
    const bool stale = found && (visible_from_here(found->writer, me) ? !lives(found->writer)
                                                                      : found->writer.written < me.written - kOld);
    if (found && !stale) return found->id;
    if (std::chrono::steady_clock::now() > deadline) {
      if (stale)
        refuse(path, " is left from an earlier run, whose rank 0 was process ", found->writer.pid,
               ", and no rank 0 has replaced it for ", patience, " s: start rank 0, or remove the file (--id-file)");
      refuse("rank 0 has not written ", path, " for ", patience, " s: start it with the same --id-file");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace train
