// SPDX-License-Identifier: MIT
#include "tools/run/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>

#include "tools/job/life.h"
#include "tools/run/processes.h"
#include "tools/run/verdict.h"
#include "tools/run/watched.h"
#include "tools/say.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kBeat = 1000ms;
constexpr auto kGraceAlone = 100ms;    // before the diagnosis, when all ranks are this supervisor's
constexpr auto kGraceShared = 2500ms;  // when other supervisors take snapshots too
constexpr auto kVerdictTime = 60s;
constexpr int kEndGraceMs = 3000;

const int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t forwarded_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded) sigaddset(&set, signal);
  return set;
}

// The child of fork(): becomes the program, or reports why not through `report`.
[[noreturn]] void become(const Launch& launch, const sigset_t& old_mask, int report) {
  for (const auto& [name, value] : launch.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& word : launch.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &old_mask, nullptr);
  execv(launch.program.c_str(), argv.data());
  const int error = errno;
  ssize_t written = write(report, &error, sizeof error);
  _exit(written == sizeof error ? 127 : 126);
}

struct Started {
  pid_t pid = -1;
  int error = 0;
};

Started start(const Launch& launch, const sigset_t& old_mask) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return {-1, errno};
  const pid_t pid = fork();
  if (pid == 0) become(launch, old_mask, report[1]);
  close(report[1]);
  Started started{pid, pid < 0 ? errno : 0};
  int error = 0;
  if (pid > 0 && read(report[0], &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    started = {-1, error};
  }
  close(report[0]);
  return started;
}

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string read_request(const std::string& folder) {
  std::ifstream in(folder + "/" + trace::kSnapshotRequestFile, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// A request reads "lockstep-snapshot <round> <time> <r or q> <words>".
char reason_of(const std::string& request) {
  std::istringstream words(request);
  std::string word;
  for (int i = 0; i < 4; i++) words >> word;
  return word == "q" ? 'q' : 'r';
}

class Supervisor {
 public:
  Supervisor(const Launch& launch, const RunOptions& options, pid_t child, int signals)
      : launch_(launch),
        options_(options),
        child_(child),
        signals_(signals),
        child_fd_(open_pidfd(child)),
        traces_(launch.folder, getpid()),
        answered_(read_request(launch.folder)) {}
  ~Supervisor() {
    if (child_fd_ >= 0) close(child_fd_);
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run() {
    while (!child_ended_) {
      wait_for_something();
      look_at_child();
      traces_.note_ends(child_);
      if (Clock::now() >= next_beat_) beat();
      if (verdict_due_ && Clock::now() >= *verdict_due_) start_verdict();
      if (look_at_verdict()) return ended_by_verdict();
      if (others_ended_theirs()) return ended_by_verdict();
    }
    return after_the_end();
  }

 private:
  void wait_for_something() {
    std::vector<struct pollfd> fds{
        {signals_, POLLIN, 0}, {child_fd_, POLLIN, 0}, {traces_.new_file_descriptor(), POLLIN, 0}};
    for (const int fd : traces_.end_descriptors()) fds.push_back({fd, POLLIN, 0});
    if (verdict_.is_running()) fds.push_back({verdict_.descriptor(), POLLIN, 0});
    auto until = next_beat_;
    if (verdict_due_) until = std::min(until, *verdict_due_);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left, 0)));
    if (fds[0].revents & POLLIN) forward_signal();
    if (fds[2].revents & POLLIN) traces_.scan();
  }

  // What the terminal sends reaches the program by itself; what a process sent to us is meant for it.
  void forward_signal() {
    struct signalfd_siginfo info;
    if (read(signals_, &info, sizeof info) != sizeof info) return;
    traces_.scan();
    const int signal = static_cast<int>(info.ssi_signo);
    if (is_request_to_stop(signal)) traces_.note_signal(signal);
    if (info.ssi_code != SI_KERNEL) kill(child_, signal);
  }

  void look_at_child() {
    struct rusage usage = {};
    const pid_t got = wait4(child_, &wait_status_, WNOHANG, &usage);
    if (got == 0 || (got < 0 && errno == EINTR)) return;
    child_ended_ = true;
    traces_.scan();  // it may have lived for less than a beat
    traces_.note_child(child_, wait_status_, usage);
  }

  void beat() {
    next_beat_ = Clock::now() + kBeat;
    traces_.scan();
    const std::string request = read_request(launch_.folder);
    if (request.empty() || request == answered_) return;
    answered_ = request;
    served_.push_back(request);
    traces_.take_snapshots(reason_of(request));
    if (!claim_verdict(launch_.folder, request)) return;
    claimed_ = request;
    verdict_due_ = Clock::now() + (traces_.others_alive() ? kGraceShared : kGraceAlone);
    retries_.begin(reason_of(request) == 'r');
  }

  void start_verdict() {
    verdict_due_.reset();
    if (!verdict_.is_running()) verdict_.start(launch_.folder, VerdictStyle::full, kVerdictTime);
  }

  // True when there was a bad verdict that is to end the job.
  bool look_at_verdict() {
    const std::optional<bool> bad = verdict_.poll_result();
    if (!bad) return false;
    if (const auto wait = retries_.after(*bad)) verdict_due_ = Clock::now() + *wait;
    return *bad && options_.kill_on_hang;
  }

  // Ranks that have a supervisor each, and no launcher that would end them all.
  bool others_ended_theirs() const {
    return options_.kill_on_hang && std::any_of(served_.begin(), served_.end(), [&](const std::string& request) {
             return was_job_ended(launch_.folder, request);
           });
  }

  int ended_by_verdict() {
    say("lockstep: ending the job (--kill-on-hang)\n");
    if (!claimed_.empty()) note_job_ended(launch_.folder, claimed_);
    traces_.note_signal(SIGTERM);
    end_processes_below(getpid(), 0, kEndGraceMs);
    struct rusage usage = {};
    while (wait4(child_, &wait_status_, 0, &usage) < 0 && errno == EINTR) continue;
    traces_.scan();
    traces_.note_child(child_, wait_status_, usage);
    traces_.note_ends(child_);
    while (waitpid(-1, nullptr, WNOHANG) > 0) continue;  // orphans of the job that came to us
    return 1;
  }

  int after_the_end() {
    // Those below a launcher end with it, but not in the same instant.
    for (int tries = 0; tries < 10 && !traces_.end_descriptors().empty(); tries++) {
      poll(nullptr, 0, 20);
      traces_.note_ends(child_);
    }
    verdict_.finish(5s);
    if (traces_.any() && !traces_.others_alive()) {
      verdict_.start(launch_.folder, VerdictStyle::one_line, kVerdictTime);
      verdict_.finish(kVerdictTime);
    }
    return shell_status(wait_status_);
  }

  const Launch& launch_;
  const RunOptions& options_;
  pid_t child_;
  int signals_, child_fd_;
  WatchedTraces traces_;
  std::string answered_, claimed_;
  std::vector<std::string> served_;  // requests
  VerdictProcess verdict_;
  std::optional<Clock::time_point> verdict_due_;
  Retries retries_;
  Clock::time_point next_beat_ = Clock::now();
  bool child_ended_ = false;
  int wait_status_ = 0;
};

}  // namespace

int supervise(const Launch& launch, const RunOptions& options) {
  const sigset_t ours = forwarded_signals();
  sigset_t old_mask;
  sigprocmask(SIG_BLOCK, &ours, &old_mask);
  const int signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
  signal(SIGPIPE, SIG_IGN);  // whoever reads our messages may leave; the job is still to be looked after
  // Orphans of the job come to us instead of to init, so that all of them can be ended.
  if (options.kill_on_hang) prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Started started = start(launch, old_mask);
  if (started.pid < 0) {
    say("lockstep run: {}: cannot be started: {}\n", launch.program, strerror(started.error));
    return 2;
  }
  const int status = Supervisor(launch, options, started.pid, signals).run();
  close(signals);
  return status;
}

}  // namespace lockstep
