// SPDX-License-Identifier: MIT
#include "tools/run/snapshot.h"

#include <elf.h>
#include <libunwind-ptrace.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kDeepest = 128;

std::string proc_text(pid_t pid, pid_t tid, const char* what) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/" + what);
  std::string line;
  std::getline(in, line);
  return line;
}

char state_of(pid_t pid, pid_t tid) {
  const std::string stat = proc_text(pid, tid, "stat");
  const size_t close = stat.rfind(')');
  return close == std::string::npos || close + 2 >= stat.size() ? '?' : stat[close + 2];
}

pid_t parent_of(pid_t pid) {
  const std::string stat = proc_text(pid, pid, "stat");
  const size_t close = stat.rfind(')');
  return close == std::string::npos
             ? 0
             : static_cast<pid_t>(strtol(stat.c_str() + std::min(close + 4, stat.size()), nullptr, 10));
}

std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> tids;
  std::error_code failed;
  for (std::filesystem::directory_iterator at("/proc/" + std::to_string(pid) + "/task", failed), end;
       !failed && at != end; at.increment(failed))
    tids.push_back(static_cast<pid_t>(std::stol(at->path().filename().string())));
  std::sort(tids.begin(), tids.end(), [&](pid_t a, pid_t b) { return (a == pid) != (b == pid) ? a == pid : a < b; });
  return tids;
}

// A thread we trace. Until it is let go its process cannot end: one that ends while it is traced is a zombie that only
// its tracer can reap. The status of a process that is our own child stays there for whoever waits for it.
struct TracedThread {
  pid_t tid = 0;
  bool is_own_child = false;

  enum class State { runs, has_stopped, has_ended, is_not_ours };
  State state() const {
    siginfo_t info = {};
    if (waitid(P_PID, id(), &info, WSTOPPED | WEXITED | WNOWAIT | WNOHANG | __WALL) != 0) return State::is_not_ours;
    if (info.si_pid != tid) return State::runs;
    return info.si_code == CLD_TRAPPED || info.si_code == CLD_STOPPED ? State::has_stopped : State::has_ended;
  }
  // Of a thread that has stopped: the signal that was on its way and must still be delivered, or 0 for our interrupt.
  int take_signal() const {
    siginfo_t info = {};
    waitid(P_PID, id(), &info, WSTOPPED | WNOHANG | __WALL);
    return info.si_status >> 8 == 0 ? info.si_status & 0x7f : 0;
  }
  // False where it was killed in its stop and is about to end.
  bool go_on_with(int signal) const {
    return ptrace(PTRACE_DETACH, tid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(signal))) == 0;
  }
  bool let_go() const {
    const State now = state();
    if (now == State::has_stopped) return go_on_with(take_signal());
    siginfo_t info = {};
    if (now == State::has_ended && !is_own_child) waitid(P_PID, id(), &info, WEXITED | WNOHANG | __WALL);
    return now != State::runs;
  }

 private:
  id_t id() const { return static_cast<id_t>(tid); }
};

// What neither stopped nor ended in time, on a machine that has no time for it; let go with the next snapshot. A thread
// is traced by a thread, not by a process.
thread_local std::vector<TracedThread> left_behind;

bool wait_while_it_runs(const TracedThread& thread, Clock::time_point until) {
  for (auto pause = 50us; thread.state() == TracedThread::State::runs;
       std::this_thread::sleep_for(pause), pause = std::min<std::chrono::microseconds>(pause * 2, 5ms))
    if (Clock::now() >= until) return false;
  return true;
}

class StoppedThread {
 public:
  StoppedThread(pid_t pid, pid_t tid, Clock::time_point until)
      : thread_{tid, pid == tid && parent_of(pid) == getpid()} {
    if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) return;
    seized_ = true;
    if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0 || !wait_while_it_runs(thread_, until)) return;
    stopped_ = thread_.state() == TracedThread::State::has_stopped;
    if (stopped_) signal_ = thread_.take_signal();
  }
  ~StoppedThread() {
    if (!seized_ || (stopped_ && thread_.go_on_with(signal_))) return;
    // The kernel will stop it, or has killed it and will end it: one more moment.
    wait_while_it_runs(thread_, Clock::now() + 200ms);
    if (!thread_.let_go()) left_behind.push_back(thread_);
  }
  StoppedThread(const StoppedThread&) = delete;
  StoppedThread& operator=(const StoppedThread&) = delete;
  bool is_stopped() const { return stopped_; }

 private:
  TracedThread thread_;
  bool seized_ = false, stopped_ = false;
  int signal_ = 0;
};

std::vector<uint64_t> unwind(unw_addr_space_t space, pid_t tid) {
  std::vector<uint64_t> pcs;
  void* context = _UPT_create(tid);
  if (!context) return pcs;
  unw_cursor_t cursor;
  if (unw_init_remote(&cursor, space, context) == 0) {
    do {
      unw_word_t pc = 0;
      if (unw_get_reg(&cursor, UNW_REG_IP, &pc) != 0 || pc == 0) break;
      pcs.push_back(pc);
    } while (pcs.size() < kDeepest && unw_step(&cursor) > 0);
  }
  _UPT_destroy(context);
  return pcs;
}

trace::Time now() {
  struct timespec mono, wall;
  clock_gettime(CLOCK_MONOTONIC, &mono);
  clock_gettime(CLOCK_REALTIME, &wall);
  return {mono.tv_sec * 1'000'000'000LL + mono.tv_nsec, wall.tv_sec * 1'000'000'000LL + wall.tv_nsec};
}

trace::Snapshot snapshot_thread(unw_addr_space_t space, pid_t pid, pid_t tid, Clock::time_point until) {
  trace::Snapshot shot;
  shot.when = now();
  shot.tid = static_cast<uint32_t>(tid);
  shot.state = state_of(pid, tid);
  shot.thread_name = proc_text(pid, tid, "comm");
  shot.wait_channel = proc_text(pid, tid, "wchan");
  const StoppedThread thread(pid, tid, until);
  if (thread.is_stopped()) shot.pcs = unwind(space, tid);
  return shot;
}

}  // namespace

std::vector<trace::Snapshot> snapshot_process(pid_t pid, uint32_t round, char why, std::chrono::milliseconds deadline) {
  std::vector<trace::Snapshot> shots;
  unw_addr_space_t space = unw_create_addr_space(&_UPT_accessors, 0);
  if (!space) return shots;
  unw_set_caching_policy(space, UNW_CACHE_GLOBAL);
  std::erase_if(left_behind, [](const TracedThread& thread) { return thread.let_go(); });
  const auto until = Clock::now() + deadline;
  for (const pid_t tid : threads_of(pid)) {
    if (Clock::now() >= until) break;
    trace::Snapshot shot = snapshot_thread(space, pid, tid, std::min(until, Clock::now() + 500ms));
    shot.round = round;
    shot.why = why;
    shot.source = trace::SnapshotSource::ptrace;
    shots.push_back(std::move(shot));
  }
  unw_destroy_addr_space(space);
  return shots;
}

// --- modules
// -------------------------------------------------------------------------------------------------------------------

namespace {

struct Mapping {
  uint64_t start = 0, end = 0, offset = 0;
  std::string path;
};

std::vector<Mapping> executable_mappings(pid_t pid) {
  std::vector<Mapping> mappings;
  std::ifstream in("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(in, line);) {
    Mapping m;
    char rights[8] = "";
    int path_at = 0;
    unsigned long start, end, offset;
    if (sscanf(line.c_str(), "%lx-%lx %7s %lx %*s %*s %n", &start, &end, rights, &offset, &path_at) < 4) continue;
    if (!strchr(rights, 'x') || path_at == 0 || static_cast<size_t>(path_at) >= line.size()) continue;
    m.start = start;
    m.end = end;
    m.offset = offset;
    m.path = line.substr(static_cast<size_t>(path_at));
    if (m.path[0] == '/') mappings.push_back(m);
  }
  return mappings;
}

struct ElfFacts {
  std::vector<Elf64_Phdr> headers;
  std::string build_id;
};

std::string hex_text(const unsigned char* bytes, size_t size) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; i++) (text += digits[bytes[i] >> 4]) += digits[bytes[i] & 15];
  return text;
}

std::string build_id_in(const std::vector<char>& notes) {
  for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
    Elf64_Nhdr note;
    memcpy(&note, notes.data() + at, sizeof note);
    const size_t name = at + sizeof note, body = name + ((note.n_namesz + 3) & ~3u),
                 next = body + ((note.n_descsz + 3) & ~3u);
    if (next > notes.size() || next <= at) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes.data() + name, "GNU", 4) == 0)
      return hex_text(reinterpret_cast<const unsigned char*>(notes.data() + body), note.n_descsz);
    at = next;
  }
  return "";
}

ElfFacts read_elf(const std::string& path) {
  ElfFacts facts;
  std::ifstream in(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!in.read(reinterpret_cast<char*>(&header), sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr))
    return facts;
  facts.headers.resize(header.e_phnum);
  in.seekg(static_cast<std::streamoff>(header.e_phoff));
  if (!in.read(reinterpret_cast<char*>(facts.headers.data()),
               static_cast<std::streamsize>(facts.headers.size() * sizeof(Elf64_Phdr)))) {
    facts.headers.clear();
    return facts;
  }
  for (const Elf64_Phdr& segment : facts.headers) {
    if (segment.p_type != PT_NOTE || segment.p_filesz > 4096 || !facts.build_id.empty()) continue;
    std::vector<char> notes(segment.p_filesz);
    in.seekg(static_cast<std::streamoff>(segment.p_offset));
    if (in.read(notes.data(), static_cast<std::streamsize>(notes.size()))) facts.build_id = build_id_in(notes);
    in.clear();
  }
  return facts;
}

}  // namespace

std::vector<trace::Module> modules_of_process(pid_t pid) {
  std::vector<trace::Module> modules;
  std::map<std::string, ElfFacts> known;
  for (const Mapping& mapping : executable_mappings(pid)) {
    const auto [place, is_new] = known.try_emplace(mapping.path);
    if (is_new) place->second = read_elf(mapping.path);
    for (const Elf64_Phdr& segment : place->second.headers) {
      if (segment.p_type != PT_LOAD || !(segment.p_flags & PF_X)) continue;
      if (mapping.offset < (segment.p_offset & ~0xfffull) || mapping.offset >= segment.p_offset + segment.p_filesz)
        continue;
      trace::Module module;
      module.bias = mapping.start - mapping.offset + segment.p_offset - segment.p_vaddr;
      module.start = mapping.start;
      module.end = mapping.end;
      module.build_id = place->second.build_id;
      module.path = mapping.path;
      modules.push_back(std::move(module));
      break;
    }
  }
  return modules;
}

}  // namespace lockstep
