// SPDX-License-Identifier: MIT
//
// Processes are started as a launcher starts them: a fresh program each, with RANK and WORLD_SIZE, before anything
// touched CUDA. Each asks the kernel to be killed when its launcher dies, so nothing outlives it, however it ends.

#include "reference/scene/launch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "reference/scene/rank.h"

namespace lockstep::scene {
namespace {

Stage make_stage(const scenario::Scenario& scenario, const PlayOptions& options, Board& board) {
  return {scenario,
          scenario::permutation(options.seed, scenario.ranks),
          options.shift,
          board,
          plan_board(scenario),
          options.launcher_pid};
}

void set_environment(const scenario::Scenario& scenario, const PlayOptions& options) {
  for (const auto& [name, value] : scenario.environment) setenv(name.c_str(), value.c_str(), 1);
  const std::string fault =
      scenario::fault_setting(scenario, scenario::permutation(options.seed, scenario.ranks), options.shift);
  if (!fault.empty()) setenv("LOCKSTEP_HOST_FAULT", fault.c_str(), 1);
}

[[noreturn]] void become_rank(const scenario::Scenario& scenario, const PlayOptions& options, int board_fd, int rank,
                              pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);  // it died before we asked
  int world_rank = scenario::permutation(options.seed, scenario.ranks)[static_cast<size_t>(rank)];
  setenv("RANK", std::to_string(world_rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(world_rank).c_str(), 1);
  setenv("WORLD_SIZE", std::to_string(scenario.ranks).c_str(), 1);
  if (const auto own = scenario.rank_environment.find(rank); own != scenario.rank_environment.end())
    for (const auto& [name, value] : own->second) setenv(name.c_str(), value.c_str(), 1);
  if (std::count(scenario.untraced.begin(), scenario.untraced.end(), rank)) unsetenv("LD_PRELOAD");
  std::string args[] = {"--permute",  std::to_string(options.seed), "--shift", std::to_string(options.shift),
                        "--rank",     std::to_string(rank),         "--board", std::to_string(board_fd),
                        "--launcher", std::to_string(launcher),     "--ranks", std::to_string(options.ranks)};
  std::vector<char*> argv{const_cast<char*>("lockstep-scene"), const_cast<char*>(scenario.path.c_str())};
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  // By its own path: run as /proc/self/exe, it would be called "exe" in every list of processes.
  char self[4096];
  ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length > 0) self[length] = 0, execv(self, argv.data());
  std::perror("lockstep-scene: cannot start a rank");
  _exit(1);
}

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

// Of all ranks, in whatever order they end; a rank that fails does not end the others, since what becomes of them is
// the scene.
int wait_for_all(Board& board, const std::vector<pid_t>& pids) {
  int worst = 0;
  for (size_t left = pids.size(); left > 0;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) break;
    const auto rank = std::find(pids.begin(), pids.end(), pid);
    if (rank == pids.end()) continue;
    note_end(board, static_cast<int>(rank - pids.begin()));
    left--;
    if (worst == 0) worst = status_of(status);
  }
  return worst;
}

}  // namespace

int play_one(const scenario::Scenario& scenario, const PlayOptions& options) {
  Board* board = open_board(options.board_fd);
  if (!board) return 1;
  Stage stage = make_stage(scenario, options, *board);
  play_rank(stage, options.rank);
  return 0;
}

int launch_processes(const scenario::Scenario& scenario, const PlayOptions& options) {
  int fd = -1;
  Board* board = create_board(fd);
  if (!board) return 1;
  set_environment(scenario, options);
  pid_t launcher = getpid();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < scenario.ranks; rank++) {
    pid_t pid = fork();
    if (pid == 0) become_rank(scenario, options, fd, rank, launcher);
    if (pid < 0) {
      std::perror("lockstep-scene: cannot start a rank");
      return 1;  // our death ends those that run
    }
    pids.push_back(pid);
  }
  return wait_for_all(*board, pids);
}

int launch_threads(const scenario::Scenario& scenario, const PlayOptions& options) {
  int fd = -1;
  Board* board = create_board(fd);
  if (!board) return 1;
  set_environment(scenario, options);
  Stage stage = make_stage(scenario, options, *board);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < scenario.ranks; rank++) {
    ranks.emplace_back([&stage, rank] {
      std::string name = "rank " + std::to_string(stage.world_rank[static_cast<size_t>(rank)]);
      prctl(PR_SET_NAME, name.c_str());
      play_rank(stage, rank);
      note_end(stage.board, rank);
    });
  }
  for (std::thread& t : ranks) t.join();
  return 0;
}

}  // namespace lockstep::scene
