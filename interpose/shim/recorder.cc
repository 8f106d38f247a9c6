// SPDX-License-Identifier: MIT
//
// See recorder.h. Starting reads as a list: settings, folder, who we are, stacks, file, modules, exits, helper.

#include "interpose/shim/libc.h"

#include "interpose/shim/recorder.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/exit.h"
#include "interpose/shim/helper.h"
#include "interpose/shim/identity.h"
#include "interpose/shim/modules.h"
#include "interpose/shim/real.h"
#include "interpose/shim/report.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/stacks.h"
#include "interpose/shim/states.h"
#include "interpose/shim/text.h"
#include "interpose/shim/thread.h"

namespace lockstep::shim {

constinit Recorder recorder = {};  // there before any code of the job runs

namespace {

// Like `mkdir -p`. An existing folder is fine; whether it can be written to shows when the file is made. Gives back why
// the last one could not be made, or 0.
int make_folders(char* path) {
  for (char* c = path + 1; *c; c++) {
    if (*c != '/') continue;
    *c = '\0';
    mkdir(path, 0777);
    *c = '/';
  }
  return mkdir(path, 0777) == 0 || errno == EEXIST ? 0 : errno;
}

bool fail(const char* doing, int error, const char* folder) {
  Text<900> text;
  text << "not recording this process (pid " << getpid() << "): could not " << doing << " in " << folder << ": "
       << strerror(error) << "; the job goes on. LOCKSTEP_DIR names another folder";
  report(text.text());
  return false;
}

const char* choose_stacks(const Config& config) {
  if (!config.stacks) return "switched off by LOCKSTEP_STACKS=0";
  return start_stacks();
}

trace::ClockPair clocks_now() { return read_clocks(recorder.tsc); }

bool start() {
  recorder.config = read_config();
  recorder.tsc = !recorder.config.clock_gettime && tsc_is_steady();
  const trace::ClockPair first = clocks_now();
  prepare_barriers();
  const Config& config = recorder.config;

  char folder[400];
  TextBuilder name(folder, sizeof folder);
  if (config.folder)
    name << config.folder;
  else
    name << "lockstep-traces/" << config.run_id;
  const int no_folder = make_folders(folder);

  trace::FileHeader header;
  describe_process(header, config, recorder.tsc);
  header.opened_wall_ns = first.wall_ns;
  header.opened_mono_ns = first.mono_ns;
  if (const char* why_not = choose_stacks(config))
    trace::put_text(header.stacks_note, sizeof header.stacks_note, why_not, strlen(why_not));
  else
    header.stacks_enabled = 1;

  const trace::Failure failure = trace::create(recorder.trace, folder, header, first, clocks_now, config.ring_bytes);
  if (failure.what && no_folder) return fail("make the folder", no_folder, folder);
  if (failure.what) return fail(failure.what, failure.error, folder);
  if (!start_threads()) return fail("get a thread key", ENOMEM, folder);
  find_driver();
  write_environment();
  write_modules();
  watch_exits();
  recorder.trace.status->last_call_stamp.store(stamp_now(recorder.tsc), std::memory_order_relaxed);
  return true;
}

}  // namespace

bool start_recording() {
  for (;;) {
    Recording state = Recording::idle;
    if (recorder.state.compare_exchange_strong(state, Recording::starting, std::memory_order_acq_rel)) break;
    if (state != Recording::starting) return state == Recording::on;
    sched_yield();
  }
  const int saved = errno;
  const bool on = !disabled() && start();
  recorder.state.store(on ? Recording::on : Recording::off, std::memory_order_release);
  if (on) start_helper();
  errno = saved;
  return on;
}

void forget_recording() {
  // The mapping of the parent's file stays, since the fork may have happened inside a call that still points into it.
  // Nothing writes there any more: what was begun under another epoch is not ended.
  recorder.epoch.fetch_add(1, std::memory_order_relaxed);
  recorder.ready.store(kNotReady, std::memory_order_relaxed);
  memset(static_cast<void*>(&recorder.trace), 0, sizeof recorder.trace);
  recorder.trace.fd = -1;
  forget_threads();
  forget_comms();
  forget_stacks();
  forget_modules();
  forget_states();
  if (recorder.state.load(std::memory_order_relaxed) != Recording::off)
    recorder.state.store(Recording::idle, std::memory_order_release);
}

}  // namespace lockstep::shim
