// SPDX-License-Identifier: MIT
//
// See config.h. A setting that cannot be read is said so once and its default taken: a job does not stop for its
// tracer.

#include "interpose/shim/libc.h"

#include "interpose/shim/config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "interpose/shim/proc.h"
#include "interpose/shim/report.h"
#include "interpose/shim/text.h"
#include "interpose/trace/format.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {

namespace {

const char* value_of(const char* name) {
  const char* value = getenv(name);
  return value && *value ? value : nullptr;
}

void complain(const char* name, const char* value, const char* expected) {
  Text<400> text;
  text << name << "=" << value << ": expected " << expected << "; using the default";
  report(text.text());
}

// "60", "0.5": seconds to milliseconds.
bool parse_ms(const char* text, uint64_t& out) {
  uint64_t seconds = 0;
  if (!parse_number(text, seconds) && *text != '.') return false;
  out = seconds * 1000;
  if (*text != '.') return *text == '\0';
  uint64_t unit = 100;
  for (text++; is_digit(*text); text++, unit /= 10) out += unit * static_cast<uint64_t>(*text - '0');
  return *text == '\0';
}

uint64_t number_or(const char* name, uint64_t standard, uint64_t least, uint64_t most, const char* expected) {
  const char* text = value_of(name);
  if (!text) return standard;
  const char* at = text;
  uint64_t n;
  if (strlen(text) < 12 && parse_number(at, n) && *at == '\0' && n >= least && n <= most) return n;
  complain(name, text, expected);
  return standard;
}

uint64_t megabytes(const char* name, uint64_t standard) {
  return number_or(name, standard, 1, 65536, "a number of megabytes from 1 to 65536") << 20;
}

// What ranks of one run have in common when nobody names it: the process that started them.
void name_after_parent(TextBuilder& out) {
  const int32_t parent = getppid();
  const ProcessTimes times = process_times(parent);
  const time_t started = static_cast<time_t>(times.start_wall_s);
  struct tm utc = {};
  gmtime_r(&started, &utc);
  out.padded(static_cast<uint64_t>(utc.tm_year + 1900), 4).padded(static_cast<uint64_t>(utc.tm_mon + 1), 2);
  out.padded(static_cast<uint64_t>(utc.tm_mday), 2) << '-';
  out.padded(static_cast<uint64_t>(utc.tm_hour), 2).padded(static_cast<uint64_t>(utc.tm_min), 2);
  out.padded(static_cast<uint64_t>(utc.tm_sec), 2) << '.' << parent;
}

void name_run(char* to, size_t size) {
  TextBuilder out(to, size);
  const char* torch = value_of("TORCHELASTIC_RUN_ID");
  if (torch && strcmp(torch, "none") == 0) torch = nullptr;  // torchrun's word for "not given"
  const char* restart = nullptr;
  if (const char* given = value_of("LOCKSTEP_RUN_ID")) {
    out << given;
  } else if (const char* slurm = value_of("SLURM_JOB_ID")) {
    out << slurm;
    restart = value_of("SLURM_RESTART_COUNT");
  } else if (torch) {
    out << torch;
  } else if (const char* mpi = value_of("OMPI_MCA_ess_base_jobid")) {
    out << mpi;
  } else if (const char* pmix = value_of("PMIX_NAMESPACE")) {
    out << pmix;
  } else {
    name_after_parent(out);
  }
  if (!restart && !value_of("LOCKSTEP_RUN_ID")) restart = value_of("TORCHELASTIC_RESTART_COUNT");
  if (restart && strcmp(restart, "0") != 0) out << '.' << restart;
  for (char* c = to; *c; c++)  // it becomes a folder's name
    if (*c == '/' || static_cast<unsigned char>(*c) < ' ') *c = '-';
}

}  // namespace

bool disabled() {
  const char* value = getenv("LOCKSTEP");
  return value && strcmp(value, "0") == 0;
}

Config read_config() {
  Config config = {};
  config.folder = value_of("LOCKSTEP_DIR");
  config.ring_bytes = megabytes("LOCKSTEP_RING_MB", trace::kDefaultRingBytes >> 20);
  config.hang_ms = 60000;
  if (const char* text = value_of("LOCKSTEP_HANG_SECONDS")) {
    uint64_t ms;
    if (strlen(text) < 12 && parse_ms(text, ms) && ms <= 86400000)
      config.hang_ms = static_cast<uint32_t>(ms);
    else
      complain("LOCKSTEP_HANG_SECONDS", text, "a number of seconds from 0 to 86400");
  }
  config.stacks = number_or("LOCKSTEP_STACKS", 1, 0, 1, "0 or 1") != 0;
  config.states = number_or("LOCKSTEP_STATES", 1, 0, 1, "0 or 1") != 0;
  if (const char* mode = value_of("LOCKSTEP_MODE")) {
    config.full_mode = strcmp(mode, "full") == 0;
    if (!config.full_mode && strcmp(mode, "ring") != 0) complain("LOCKSTEP_MODE", mode, "ring or full");
  }
  if (const char* clock = value_of("LOCKSTEP_CLOCK")) {
    config.clock_gettime = strcmp(clock, "monotonic") == 0;
    if (!config.clock_gettime && strcmp(clock, "tsc") != 0) complain("LOCKSTEP_CLOCK", clock, "tsc or monotonic");
  }
  if (config.full_mode) config.ring_bytes = megabytes("LOCKSTEP_FULL_MB", 4096);
  if (const char* digest = value_of("LOCKSTEP_DIGEST"))
    trace::put_text(config.digest, sizeof config.digest, digest, strlen(digest));
  if (const char* phases = value_of("LOCKSTEP_NVTX_PHASES"))
    trace::put_text(config.nvtx_phases, sizeof config.nvtx_phases, phases, strlen(phases));
  config.digest_bytes = megabytes("LOCKSTEP_DIGEST_MB", 64);
  config.supervisor = static_cast<int32_t>(number_or("LOCKSTEP_SUPERVISOR", 0, 0, 1u << 30, "a process id"));
  name_run(config.run_id, sizeof config.run_id);
  return config;
}

}  // namespace lockstep::shim
