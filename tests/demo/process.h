// SPDX-License-Identifier: MIT
//
// Running a program as a person would, with a deadline: its exit status and everything it wrote. Whatever it started is
// ended with it, so that a test that fails leaves nothing behind.

#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::test {

struct Outcome {
  int status = -1;  // exit status; 128 + signal; -1 when the deadline passed
  std::string out;
  std::string err;
};
Outcome run_program(const std::vector<std::string>& command, std::chrono::seconds deadline);

// An empty folder of one's own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Process ids of living processes that have `text` in their command line or environment.
std::vector<int> processes_with(const std::string& text);

}  // namespace lockstep::test
