// SPDX-License-Identifier: MIT
//
// See log.h.

#include "reference/nccl/log.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

#include "reference/cuda/api.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

enum Level { none = 0, version = 1, warnings = 2, information = 3, everything = 5 };

struct Settings {
  Level level = none;
  unsigned subsystems = kInit | kEnv;
  std::FILE* output = stdout;
};

char g_last[1024];  // never cleared, as in NCCL
std::mutex g_mutex;
Settings* g_settings = nullptr;            // under the mutex; never freed
std::atomic<unsigned> g_information{~0u};  // subsystems whose lines are wanted; ~0: the settings were not read yet

Level level_wanted() {
  const char* text = setting("NCCL_DEBUG");
  if (text == nullptr) return none;
  constexpr std::pair<const char*, Level> names[] = {
      {"VERSION", version}, {"WARN", warnings}, {"INFO", information}, {"ABORT", everything}, {"TRACE", everything}};
  for (const auto& [name, level] : names)
    if (strcasecmp(text, name) == 0) return level;
  return none;
}

// "INIT,COLL", or "^COLL": all but those.
unsigned subsystems_wanted() {
  const char* text = setting("NCCL_DEBUG_SUBSYS");
  if (text == nullptr) return kInit | kEnv;
  const bool excludes = *text == '^';
  unsigned chosen = 0;
  std::string word;
  for (const char* c = excludes ? text + 1 : text;; ++c) {
    if (*c != ',' && *c != '\0') {
      word += *c;
      continue;
    }
    if (strcasecmp(word.c_str(), "INIT") == 0) chosen |= kInit;
    if (strcasecmp(word.c_str(), "COLL") == 0) chosen |= kColl;
    if (strcasecmp(word.c_str(), "ENV") == 0) chosen |= kEnv;
    if (strcasecmp(word.c_str(), "ALL") == 0) chosen |= kInit | kColl | kEnv;
    word.clear();
    if (*c == '\0') break;
  }
  return excludes ? (kInit | kColl | kEnv) & ~chosen : chosen;
}

std::string host_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return std::string(host, strcspn(host, "."));
}

// NCCL_DEBUG_FILE with %h and %p; stdout without it.
std::FILE* open_output() {
  const char* pattern = setting("NCCL_DEBUG_FILE");
  if (pattern == nullptr || *pattern == '\0') return stdout;
  std::string path;
  for (const char* c = pattern; *c != '\0'; ++c) {
    if (*c != '%' || (c[1] != 'h' && c[1] != 'p' && c[1] != '%')) {
      path += *c;
      continue;
    }
    ++c;
    if (*c == 'h') path += host_name();
    if (*c == 'p') path += std::to_string(getpid());
    if (*c == '%') path += '%';
  }
  std::FILE* file = std::fopen(path.c_str(), "we");
  return file != nullptr ? file : stdout;
}

const Settings& settings() {
  if (g_settings != nullptr) return *g_settings;
  g_settings = new Settings;
  g_settings->level = level_wanted();
  if (g_settings->level > version) {
    g_settings->subsystems = subsystems_wanted();
    g_settings->output = open_output();
  }
  g_information.store(g_settings->level >= information ? g_settings->subsystems : 0);
  return *g_settings;
}

void print(const char* kind, const char* text) {
  char when[40] = "";
  if (std::strcmp(kind, "WARN") == 0) {  // these stand out: an empty line before, and the time
    const time_t now = time(nullptr);
    tm parts{};
    strftime(when, sizeof when, "\n[%Y-%m-%d %H:%M:%S] ", localtime_r(&now, &parts));
  }
  const char* const place = *when != '\0' ? "lockstep-host:0 " : "";  // where NCCL has file:line
  std::fprintf(settings().output, "%s%s:%d:%ld [%d] %sNCCL %s %s\n", when, host_name().c_str(), getpid(),
               syscall(SYS_gettid), lockstep_host_api()->current_device(), place, kind, text);
  std::fflush(settings().output);
}

void keep(const char* format, va_list arguments, bool loudly) {
  char text[sizeof g_last];
  std::vsnprintf(text, sizeof text, format, arguments);
  const std::lock_guard lock(g_mutex);
  std::memcpy(g_last, text, sizeof text);
  if (loudly) std::fprintf(stderr, "lockstep host runtime: %s\n", text);
  if (settings().level >= warnings) print("WARN", text);
}

}  // namespace

void warn(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  keep(format, arguments, false);
  va_end(arguments);
}

void warn_loudly(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  keep(format, arguments, true);
  va_end(arguments);
}

bool info_wanted(unsigned subsystem) {
  unsigned wanted = g_information.load(std::memory_order_relaxed);
  if (wanted == ~0u) {
    const std::lock_guard lock(g_mutex);
    settings();
    wanted = g_information.load();
  }
  return (wanted & subsystem) != 0;
}

void info(unsigned subsystem, const char* format, ...) {
  if (!info_wanted(subsystem)) return;
  char text[sizeof g_last];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const std::lock_guard lock(g_mutex);
  print("INFO", text);
}

// A copy of the thread's own: others may warn meanwhile.
const char* last_warning() {
  thread_local char copy[sizeof g_last];
  const std::lock_guard lock(g_mutex);
  std::memcpy(copy, g_last, sizeof copy);
  return copy;
}

void tell_version(int rank) {
  static std::atomic<bool> told{false};
  constexpr const char* kText = "NCCL version 2.28.9+cuda13.0";
  const std::lock_guard lock(g_mutex);
  const Level level = settings().level;
  if (level == none || (level <= warnings && rank != 0) || told.exchange(true)) return;
  if (level >= information) {
    print("INFO", kText);
    print("INFO", "This is the Lockstep host runtime: CPU memory, no GPU, no network");
    return;
  }
  std::fprintf(settings().output, "%s\n", kText);
  std::fflush(settings().output);
}

void reset_log() {
  const std::lock_guard lock(g_mutex);
  if (g_settings != nullptr && g_settings->output != stdout) std::fclose(g_settings->output);
  delete std::exchange(g_settings, nullptr);
  g_information.store(~0u);
}

}  // namespace lockstep::nccl
