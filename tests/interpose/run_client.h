// SPDX-License-Identifier: MIT
//
// Starts a program with a given environment and a deadline, and collects what it wrote and how it ended.

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

extern char** environ;

namespace lockstep {

struct Outcome {
  bool timed_out = false;
  int status = 0;  // as waitpid gives it
  std::string out, err;
  bool exited_with(int code) const { return !timed_out && WIFEXITED(status) && WEXITSTATUS(status) == code; }
  bool signalled_by(int signal) const { return !timed_out && WIFSIGNALED(status) && WTERMSIG(status) == signal; }
};

using Environment = std::map<std::string, std::string>;  // an empty value removes the variable

class Process {
 public:
  Process(const std::vector<std::string>& arguments, const Environment& changes, const std::string& folder = "") {
    Environment merged;
    for (char** at = environ; *at; at++)
      if (const char* equals = strchr(*at, '=')) merged[std::string(*at, static_cast<size_t>(equals - *at))] = equals + 1;
    // In a build with sanitizers: let a preloaded library come first, and leave the signals alone that a test is about.
    merged["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0:handle_segv=0:handle_abort=0:handle_sigbus=0";
    merged["UBSAN_OPTIONS"] = "print_stacktrace=1";
    merged["TSAN_OPTIONS"] = "handle_segv=0:handle_abort=0:handle_sigbus=0:die_after_fork=0";
    for (const auto& [name, value] : changes) merged[name] = value;
    std::vector<std::string> texts;
    for (const auto& [name, value] : merged)
      if (!value.empty()) texts.push_back(name + "=" + value);
    std::vector<char*> env, argv;
    for (std::string& text : texts) env.push_back(text.data());
    env.push_back(nullptr);
    std::vector<std::string> copies = arguments;
    for (std::string& text : copies) argv.push_back(text.data());
    argv.push_back(nullptr);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      dup2(out[1], 1);
      dup2(err[1], 2);
      if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(126);
      execve(argv[0], argv.data(), env.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  Process(const Process&) = delete;
  ~Process() {
    if (pid_ > 0 && !reaped_) {
      kill(-pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (out_ >= 0) close(out_);
    if (err_ >= 0) close(err_);
  }

  pid_t pid() const { return pid_; }
  Outcome& outcome() { return outcome_; }

  // Reads on until stderr holds the text; false at the deadline or when both streams have ended.
  bool wait_for(const std::string& text, double seconds) {
    const double deadline = now() + seconds;
    while (outcome_.err.find(text) == std::string::npos)
      if (!pump(deadline)) return outcome_.err.find(text) != std::string::npos;
    return true;
  }

  // To the end of the process; past the deadline it is killed, with all it started.
  Outcome finish(double seconds) {
    const double deadline = now() + seconds;
    while (pump(deadline)) {
    }
    while (waitpid(pid_, &outcome_.status, WNOHANG) == 0) {
      if (now() > deadline) {
        outcome_.timed_out = true;
        kill(-pid_, SIGKILL);
        waitpid(pid_, &outcome_.status, 0);
        break;
      }
      usleep(2000);
    }
    reaped_ = true;
    return outcome_;
  }

 private:
  static double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  // One piece of output; false when there will be none any more, or the deadline has passed.
  bool pump(double deadline) {
    struct pollfd fds[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    if (out_ < 0 && err_ < 0) return false;
    const double left = deadline - now();
    if (left <= 0) return false;
    if (poll(fds, 2, static_cast<int>(left * 1000) + 1) <= 0) return true;
    take(fds[0], out_, outcome_.out);
    take(fds[1], err_, outcome_.err);
    return true;
  }
  static void take(const struct pollfd& ready, int& fd, std::string& to) {
    if (fd < 0 || ready.revents == 0) return;
    char buffer[4096];
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n > 0) {
      to.append(buffer, static_cast<size_t>(n));
    } else {
      close(fd);
      fd = -1;
    }
  }

  pid_t pid_ = -1;
  bool reaped_ = false;
  int out_ = -1, err_ = -1;
  Outcome outcome_;
};

inline Outcome run(const std::vector<std::string>& arguments, const Environment& changes, double seconds = 30,
                   const std::string& folder = "") {
  return Process(arguments, changes, folder).finish(seconds);
}

}  // namespace lockstep
