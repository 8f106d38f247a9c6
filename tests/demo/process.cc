// SPDX-License-Identifier: MIT
//
// See process.h. Output goes to files, not pipes: a pipe's end is only seen when the last grandchild has closed it.

#include "tests/demo/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace lockstep::test {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

[[noreturn]] void become(const std::vector<std::string>& command, const std::string& out, const std::string& err) {
  setpgid(0, 0);
  dup2(open("/dev/null", O_RDONLY), 0);
  dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
  dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Outcome run_program(const std::vector<std::string>& command, std::chrono::seconds deadline) {
  TemporaryFolder folder;
  const pid_t pid = fork();
  if (pid == 0) become(command, folder.path("out"), folder.path("err"));

  Outcome outcome;
  const auto end = std::chrono::steady_clock::now() + deadline;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  kill(-pid, SIGKILL);
  if (ended == 0) waitpid(pid, &status, 0);
  if (ended == pid) outcome.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.out = read_file(folder.path("out"));
  outcome.err = read_file(folder.path("err"));
  return outcome;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
  if (!mkdtemp(name.data())) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<int> processes_with(const std::string& text) {
  std::vector<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    const std::string about = read_file(entry.path() / "cmdline") + read_file(entry.path() / "environ");
    if (about.find(text) != std::string::npos) found.push_back(pid);
  }
  return found;
}

}  // namespace lockstep::test
