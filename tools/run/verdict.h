// SPDX-License-Identifier: MIT
//
// The diagnosis as the supervisor has it made: in a child process, with a deadline, so that nothing it meets in a trace
// can take the supervisor down or hold it up. The child prints the verdict itself, if it is bad and not printed yet; a
// folder with several supervisors prints each verdict once.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep {

enum class VerdictStyle { full, one_line };

// Who answers a request with a diagnosis: the first supervisor of the folder to ask.
bool claim_verdict(const std::string& folder, const std::string& request);
// That a job was ended for the verdict on that request: supervisors of its other ranks end theirs, too.
void note_job_ended(const std::string& folder, const std::string& request);
bool was_job_ended(const std::string& folder, const std::string& request);

// How often a folder is judged for one request. When a rank has said that it hangs and the traces did not, they are
// read again, each time after twice as long: on a busy machine some tell late how far they have come.
class Retries {
 public:
  static constexpr int kMost = 5;
  static constexpr std::chrono::milliseconds kFirst{1000};

  void begin(bool rank_hangs);  // else the request is a quiet look, and its first verdict stands
  // After a verdict: how long until the next one. nullopt = this one stands.
  std::optional<std::chrono::milliseconds> after(bool bad);

 private:
  int left_ = 0;
  std::chrono::milliseconds wait_ = kFirst;
};

class VerdictProcess {
 public:
  VerdictProcess() = default;
  ~VerdictProcess();
  VerdictProcess(const VerdictProcess&) = delete;
  VerdictProcess& operator=(const VerdictProcess&) = delete;

  void start(const std::string& folder, VerdictStyle style, std::chrono::milliseconds deadline);
  bool is_running() const { return pid_ > 0; }
  int descriptor() const { return pidfd_; }        // readable when it has ended
  std::optional<bool> poll_result();               // once: was the verdict bad?
  void finish(std::chrono::milliseconds at_most);  // waits, then ends it

 private:
  void stop();
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::string folder_;
  std::chrono::steady_clock::time_point until_;
};

}  // namespace lockstep
