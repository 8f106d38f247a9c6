// SPDX-License-Identifier: MIT
#include "tools/run/verdict.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tools/diagnose.h"
#include "tools/explain/explain.h"
#include "tools/report/report.h"
#include "tools/run/processes.h"
#include "tools/say.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string marker(const std::string& folder, const char* what, const std::string& of) {
  return fmt::format("{}/.{}-{:016x}", folder, what, hash_of(of));
}

// The one who creates the file is the one.
bool is_first(const std::string& folder, const char* what, const std::string& of) {
  const std::string path = marker(folder, what, of);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd >= 0) close(fd);
  return fd >= 0 || errno != EEXIST;  // a folder that became read-only must not silence a verdict
}

// What makes a verdict the same as one already printed: the cause, not the times in it.
std::string identity(const Diagnosed& found) {
  const Run& run = found.evidence->run;
  std::string text =
      fmt::format("{} {} {} {}", run.id, run.restart, run.opened_wall_ns, verdict_name(found.diagnosis.verdict));
  if (found.diagnosis.findings.empty()) return text;
  const Finding& finding = found.diagnosis.findings.front();
  return text +
         fmt::format(" {} {} {}", kind_name(finding.kind), ranks_text(run, finding.culprits), finding.seq.value_or(0));
}

// Quiet about what is well; said when it is bad, or when everybody is stuck and nobody to be named.
bool is_worth_saying(const Diagnosis& diagnosis) {
  if (exit_status_of(diagnosis.verdict) == 1) return true;
  return !diagnosis.findings.empty() && diagnosis.findings.front().severity == Severity::error &&
         diagnosis.findings.front().pending_ns > 0;
}

void write_all(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) at += static_cast<size_t>(n);
  }
}

// Exit status: 1 when the job is not well.
int make_verdict(const std::string& folder, VerdictStyle style) {
  Result<std::unique_ptr<Diagnosed>> all = diagnose_folder(folder, {});
  if (!all) return 2;
  const Diagnosed& found = **all;
  if (!is_worth_saying(found.diagnosis)) return 0;
  if (!is_first(folder, "printed", identity(found))) return 1;
  std::string text = "\nlockstep: ";
  if (style == VerdictStyle::full) {
    text += report_text(found.job, *found.evidence, found.diagnosis, wants_colour(STDERR_FILENO));
  } else {
    text += verdict_sentence(*found.evidence, found.diagnosis) + "\n";
  }
  text += fmt::format("lockstep: to see it again, or as JSON: lockstep diagnose {}\n", folder);
  write_all(STDERR_FILENO, text);
  return 1;
}

}  // namespace

bool claim_verdict(const std::string& folder, const std::string& request) {
  return is_first(folder, "answered", request);
}

void note_job_ended(const std::string& folder, const std::string& request) { is_first(folder, "ended", request); }

bool was_job_ended(const std::string& folder, const std::string& request) {
  return access(marker(folder, "ended", request).c_str(), F_OK) == 0;
}

void Retries::begin(bool rank_hangs) {
  left_ = rank_hangs ? kMost : 0;
  wait_ = kFirst;
}

std::optional<std::chrono::milliseconds> Retries::after(bool bad) {
  if (bad || left_ == 0) return std::nullopt;
  left_--;
  const auto wait = wait_;
  wait_ *= 2;
  return wait;
}

VerdictProcess::~VerdictProcess() { stop(); }

void VerdictProcess::start(const std::string& folder, VerdictStyle style, std::chrono::milliseconds deadline) {
  folder_ = folder;
  until_ = Clock::now() + deadline;
  pid_ = fork();
  if (pid_ == 0) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGINT, SIG_IGN);  // Ctrl-C is for the job; the verdict is wanted all the more
    _exit(make_verdict(folder, style));
  }
  if (pid_ > 0) pidfd_ = open_pidfd(pid_);
}

std::optional<bool> VerdictProcess::poll_result() {
  if (pid_ <= 0) return std::nullopt;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == 0) {
    if (Clock::now() < until_) return std::nullopt;
    stop();
    say("lockstep: the diagnosis took too long; run: lockstep diagnose {}\n", folder_);
    return false;
  }
  pid_ = -1;
  close(pidfd_);
  if (got > 0 && WIFSIGNALED(status))
    say("lockstep: the diagnosis itself failed (signal {}); run: lockstep diagnose {}\n", WTERMSIG(status), folder_);
  return got > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

void VerdictProcess::finish(std::chrono::milliseconds at_most) {
  if (pid_ <= 0) return;
  until_ = std::min(until_, Clock::now() + at_most);
  while (pid_ > 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - Clock::now()).count();
    struct pollfd one = {pidfd_, POLLIN, 0};
    poll(&one, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    poll_result();
  }
}

void VerdictProcess::stop() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(pidfd_);
  pid_ = -1;
}

}  // namespace lockstep
