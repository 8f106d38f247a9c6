// SPDX-License-Identifier: MIT
//
// See log.h.

#include "reference/nccl/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>

#include "reference/cuda/api.h"

namespace lockstep::nccl {
namespace {

char g_last[1024];  // never cleared, as in NCCL
std::mutex g_mutex;

bool warnings_wanted() {
  const char* level = std::getenv("NCCL_DEBUG");
  if (level == nullptr) return false;
  for (const char* name : {"WARN", "INFO", "ABORT", "TRACE"})
    if (strcasecmp(level, name) == 0) return true;
  return false;
}

// NCCL_DEBUG_FILE with %h and %p; stdout without it.
std::FILE* open_output() {
  const char* pattern = std::getenv("NCCL_DEBUG_FILE");
  if (pattern == nullptr || *pattern == '\0') return stdout;
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string path;
  for (const char* c = pattern; *c != '\0'; ++c) {
    if (*c != '%' || (c[1] != 'h' && c[1] != 'p' && c[1] != '%')) {
      path += *c;
      continue;
    }
    ++c;
    if (*c == 'h') path += host;
    if (*c == 'p') path += std::to_string(getpid());
    if (*c == '%') path += '%';
  }
  std::FILE* file = std::fopen(path.c_str(), "ae");
  return file != nullptr ? file : stdout;
}

void print(const char* text) {
  static std::FILE* const output = open_output();
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  char when[32] = "";
  const time_t now = time(nullptr);
  tm parts{};
  strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
  std::fprintf(output, "\n[%s] %s:%d:%ld [%d] host NCCL WARN %s\n", when, host, getpid(), syscall(SYS_gettid),
               lockstep_host_api()->current_device(), text);
  std::fflush(output);
}

void keep(const char* format, va_list arguments, bool loudly) {
  char text[sizeof g_last];
  std::vsnprintf(text, sizeof text, format, arguments);
  const std::lock_guard lock(g_mutex);
  std::memcpy(g_last, text, sizeof text);
  if (loudly) std::fprintf(stderr, "lockstep host runtime: %s\n", text);
  if (warnings_wanted()) print(text);
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

const char* last_warning() { return g_last; }

}  // namespace lockstep::nccl
