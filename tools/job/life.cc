// SPDX-License-Identifier: MIT
#include "tools/job/life.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

namespace lockstep {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSilence = 15 * kSecond;   // a heartbeat this far behind the others' has stopped
constexpr int64_t kTogether = 12 * kSecond;  // launchers take up to ten seconds from SIGTERM to SIGKILL

using trace::Liveness;
using trace::SupervisorState;
using trace::Time;
using trace::TraceFile;

void later(Time& a, const Time& b) {
  a.mono_ns = std::max(a.mono_ns, b.mono_ns);
  a.wall_ns = std::max(a.wall_ns, b.wall_ns);
}

Time last_sign(const TraceFile& file) {
  Time seen = file.last_beat;
  later(seen, file.last_call);
  later(seen, {file.header.opened_mono_ns, file.header.opened_wall_ns});
  for (const trace::Snapshot& snapshot : file.snapshots) later(seen, snapshot.when);
  later(seen, file.exit_time);
  return seen;
}

void set_end(Life& life, End end, int code, const Time& when) {
  life.end = end;
  life.code = code;
  life.time_known = when.wall_ns != 0;
  life.when = when.wall_ns != 0 ? when : life.seen;
}

Life life_of(const Process& process) {
  const TraceFile& file = process.file;
  Life life;
  life.seen = last_sign(file);
  life.tells_exit = file.header.version_major >= 2;
  const Time told = file.exit_time.wall_ns ? file.exit_time : file.supervisor_time;
  if (file.supervisor == SupervisorState::signalled) {
    set_end(life, End::signal, file.supervisor_code, told);
  } else if (file.exit_kind == trace::ExitKind::fatal_signal) {
    set_end(life, End::signal, file.exit_code, told);
  } else if (file.supervisor == SupervisorState::exited) {
    set_end(life, file.supervisor_code ? End::status : End::clean, file.supervisor_code, told);
  } else if (file.exit_kind == trace::ExitKind::exit) {
    set_end(life, file.exit_code ? End::status : End::clean, file.exit_code, told);
  } else if (file.supervisor == SupervisorState::gone) {
    set_end(life, End::vanished, 0, file.supervisor_code == kEndTimeUnknown ? Time{} : file.supervisor_time);
  } else if (process.liveness == Liveness::dead) {
    set_end(life, End::vanished, 0, {});
  }
  return life;
}

}  // namespace

Stopped how_stopped(const Process& process) {
  const TraceFile& file = process.file;
  const auto from_state = [](char state) {
    return state == 'T' ? Stopped::by_signal : state == 't' ? Stopped::by_debugger : Stopped::no;
  };
  if (process.state) return from_state(process.state);
  if (file.snapshots.empty()) return Stopped::no;
  const trace::Snapshot& newest = file.snapshots.back();
  constexpr int64_t kBeats = 2'500'000'000;
  const int64_t lived = std::max(file.last_beat.mono_ns - kBeats, file.last_call.mono_ns);
  if (newest.source != trace::SnapshotSource::ptrace || lived > newest.when.mono_ns) return Stopped::no;
  const Stopped stopped = from_state(newest.state);
  const bool all = std::all_of(file.snapshots.begin(), file.snapshots.end(), [&](const trace::Snapshot& shot) {
    return shot.round != newest.round || shot.state == newest.state;
  });
  return all ? stopped : Stopped::no;
}

const char* stopped_in_words(Stopped stopped) {
  return stopped == Stopped::by_debugger ? "stopped by a debugger" : "stopped by a signal or by job control";
}

std::vector<Life> lives_of(const Run& run) {
  std::vector<Life> lives;
  int64_t newest = 0;
  for (const Process& process : run.processes) {
    lives.push_back(life_of(process));
    newest = std::max(newest, lives.back().seen.wall_ns);
  }
  for (size_t i = 0; i < lives.size(); i++) {
    // A stopped process gives no sign, but the kernel does for it.
    const int64_t behind = newest - lives[i].seen.wall_ns;
    if (lives[i].end == End::none && run.processes[i].state && how_stopped(run.processes[i]) != Stopped::no &&
        behind > 0)
      lives[i].seen.mono_ns += behind, lives[i].seen.wall_ns = newest;
    if (lives[i].end != End::none || run.processes[i].liveness == Liveness::alive) continue;
    if (how_stopped(run.processes[i]) != Stopped::no) continue;
    if (!run.processes[i].file.heartbeat_known || newest - lives[i].seen.wall_ns < kSilence) continue;
    set_end(lives[i], End::vanished, 0, {});
    lives[i].guessed = true;
  }
  return lives;
}

bool is_request_to_stop(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT || signal == SIGKILL;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGHUP:
      return "SIGHUP";
    case SIGINT:
      return "SIGINT";
    case SIGQUIT:
      return "SIGQUIT";
    case SIGILL:
      return "SIGILL";
    case SIGABRT:
      return "SIGABRT";
    case SIGBUS:
      return "SIGBUS";
    case SIGFPE:
      return "SIGFPE";
    case SIGKILL:
      return "SIGKILL";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGALRM:
      return "SIGALRM";
    case SIGTERM:
      return "SIGTERM";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGXCPU:
      return "SIGXCPU";
    default:
      return "a signal";
  }
}

std::string end_in_words(const Life& life) {
  switch (life.end) {
    case End::none:
      return "is alive";
    case End::clean:
      return "ended normally (exit status 0)";
    case End::status:
      return fmt::format("ended with exit status {}", life.code);
    case End::signal:
      return fmt::format("was ended by signal {} ({})", life.code, signal_name(life.code));
    case End::vanished:
      if (life.guessed) return "fell silent while the others went on";
      return life.tells_exit ? "is gone without a word: killed (SIGKILL, out of memory), or its node"
                             : "is gone without a word: killed (SIGKILL, out of memory), its node, or it called _exit";
  }
  return "";
}

bool is_struck(const Life& life) {
  if (life.end == End::vanished) return true;
  return life.end == End::signal && (life.code == SIGKILL || !is_request_to_stop(life.code)) && life.code != SIGABRT;
}

namespace {

// When a supervisor first sent a signal to this run; 0 = none did.
int64_t first_signal_sent(const Run& run) {
  int64_t first = 0;
  for (const Process& process : run.processes)
    for (const std::string& text : process.file.texts) {
      int signal = 0;
      long long wall = 0;
      if (text.rfind(kSignalNote, 0) != 0) continue;
      if (sscanf(text.c_str() + strlen(kSignalNote), "%d %lld", &signal, &wall) != 2 || wall <= 0) continue;
      first = first == 0 ? wall : std::min<int64_t>(first, wall);
    }
  return first;
}

}  // namespace

bool stopped_from_outside(const Run& run, const std::vector<Life>& lives) {
  std::vector<const Life*> ends;
  for (const Rank& rank : run.ranks) {
    const Life& life = lives[rank.process];
    if (life.end == End::none || life.guessed) return false;
    if (life.end != End::clean) ends.push_back(&life);
  }
  if (ends.empty()) return false;
  std::sort(ends.begin(), ends.end(), [](const Life* a, const Life* b) { return a->when.wall_ns < b->when.wall_ns; });
  const Life& first = *ends.front();
  // What `lockstep run` did is on record.
  const int64_t sent = first_signal_sent(run);
  if (sent != 0 && first.when.wall_ns >= sent) return true;
  if (ends.size() < run.ranks.size() && ends.size() == 1) {
    // One was singled out, and the others went on; unless it was the last there was.
    const bool asked = first.end == End::signal && is_request_to_stop(first.code) && first.code != SIGKILL;
    const size_t last = static_cast<size_t>(&first - lives.data());
    return asked && std::all_of(run.ranks.begin(), run.ranks.end(), [&](const Rank& rank) {
             const std::string host = run.processes[rank.process].file.header.host;
             const int64_t clocks = host == run.processes[last].file.header.host ? 0 : kClocksOfHosts;
             return lives[rank.process].when.wall_ns <= first.when.wall_ns + clocks;
           });
  }
  if (ends.back()->when.wall_ns - first.when.wall_ns > kTogether) return false;
  // Somebody struck at about the time the others were asked to stop: they were asked because of that one.
  const auto struck_early = std::count_if(ends.begin(), ends.end(), [&](const Life* life) {
    return is_struck(*life) && life->when.wall_ns - first.when.wall_ns < kHeadStart;
  });
  if (struck_early == 1 && ends.size() > 2) return false;
  // Of two, the one that was struck well before the other.
  if (ends.size() == 2 && is_struck(first) && ends[1]->when.wall_ns - first.when.wall_ns >= kHeadStart) return false;
  if (first.end == End::signal && is_request_to_stop(first.code) && first.code != SIGKILL) return true;
  const auto killed = [](const Life* life) {
    return life->end == End::vanished || (life->end == End::signal && life->code == SIGKILL);
  };
  return std::all_of(ends.begin(), ends.end(), killed);
}

}  // namespace lockstep
