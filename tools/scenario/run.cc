// SPDX-License-Identifier: MIT
//
// The job gets a deadline, and this process is its reaper: whatever `lockstep run` should leave behind becomes our
// child, is reported, and is ended before we return.

#include "tools/scenario/run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tools/scenario/teardown.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

using Environment = std::vector<std::pair<std::string, std::string>>;

// Starts a program with its output in files. Returns its pid, or -1. When we die, it gets the signal: SIGTERM for
// `lockstep run`, which passes it on to the job and so takes it along.
pid_t start(int death_signal, const std::vector<std::string>& command, const fs::path& out, const fs::path& err,
            const Environment& environment = {}) {
  std::vector<char*> argv;
  for (const std::string& a : command) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_t parent = getpid();
  pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(127);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  int to_out = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  int to_err = open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  int nothing = open("/dev/null", O_RDONLY);
  if (to_out < 0 || to_err < 0 || nothing < 0) _exit(127);
  dup2(nothing, 0);
  dup2(to_out, 1);
  dup2(to_err, 2);
  for (int fd : {nothing, to_out, to_err}) close(fd);
  execv(argv[0], argv.data());
  _exit(127);
}

std::vector<pid_t> children_of(const std::string& process) {
  std::vector<pid_t> pids;
  std::error_code gone;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/" + process + "/task", gone)) {
    std::ifstream in(task.path() / "children");
    for (pid_t pid; in >> pid;) pids.push_back(pid);
  }
  return pids;
}

// What every thread of a process and of its descendants is doing, for the log of a run that did not end.
void describe_tree(pid_t pid, std::string& out) {
  std::error_code gone;
  for (const fs::directory_entry& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    std::string stat = read_file(task.path() / "stat");
    size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 2 >= stat.size()) continue;
    out += "process " + std::to_string(pid) + ", thread " + task.path().filename().string() + " " +
           stat.substr(open, close + 3 - open) + ", waits in " + read_file(task.path() / "wchan") + ", system call " +
           read_file(task.path() / "syscall");
    if (out.back() != '\n') out += '\n';
  }
  for (pid_t child : children_of(std::to_string(pid))) describe_tree(child, out);
}

struct Ended {
  bool timed_out = false;
  int status = 0;
  std::string tree;  // when it timed out: what it was doing
};

// Waits for a child until the deadline, then asks it to end, then makes it.
Ended wait_until(
    pid_t pid, Clock::time_point deadline, const std::function<void()>& meanwhile = [] {}) {
  Ended ended;
  for (auto kill_at = deadline + 3s;; std::this_thread::sleep_for(5ms)) {
    meanwhile();
    int status = 0;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == pid) {
      ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      return ended;
    }
    if (got < 0 && errno != EINTR) return ended;
    if (!ended.timed_out && Clock::now() > deadline) {
      ended.timed_out = true;
      describe_tree(pid, ended.tree);
      kill(pid, SIGTERM);
    } else if (Clock::now() > kill_at) {
      kill(pid, SIGKILL);
    }
  }
}

// Ends what is left of the job and names it. Processes that are just being killed get a moment to go.
std::string end_leftovers() {
  std::string names;
  for (auto grace = Clock::now() + 10s;; std::this_thread::sleep_for(5ms)) {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::vector<pid_t> left = children_of("self");
    if (left.empty()) return names;
    if (Clock::now() < grace) continue;
    for (pid_t pid : left) {
      std::string command = read_file("/proc/" + std::to_string(pid) + "/comm");
      names += (names.empty() ? "" : ", ") + command.substr(0, command.find('\n')) + " (" + std::to_string(pid) + ")";
      kill(pid, SIGKILL);
    }
    grace = Clock::now() + 2s;
  }
}

std::string decimal(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::vector<std::string> run_command(const ScenarioPrograms& programs, const scenario::Scenario& s,
                                     const ScenarioVariant& variant, const std::string& traces) {
  std::vector<std::string> command = {programs.lockstep,      "run", "--dir", traces, "--host", "--hang-seconds",
                                      decimal(s.hang_seconds)};
  if (s.kill_on_hang) command.push_back("--kill-on-hang");
  command.insert(command.end(), {"--", programs.player, s.path, "--permute", std::to_string(variant.seed), "--shift",
                                 std::to_string(variant.shift)});
  if (!variant.ranks_as.empty()) command.insert(command.end(), {"--ranks-as", variant.ranks_as});
  if (variant.ranks) command.insert(command.end(), {"--ranks", std::to_string(variant.ranks)});
  return command;
}

// What a launcher that restarts jobs tells them. Half of the runs do without, as others do; there the time tells.
Environment life_of_job(const scenario::Scenario& s, const ScenarioVariant& variant, int life) {
  Environment environment = s.environment;
  if (!variant.restarted || variant.seed % 2 == 0) return environment;
  environment.emplace_back("TORCHELASTIC_RUN_ID", "scene");
  environment.emplace_back("TORCHELASTIC_RESTART_COUNT", std::to_string(life));
  return environment;
}

// The verdict on the job as it is at the moment when one of its ranks asks for it.
class JudgeOnRequest {
 public:
  JudgeOnRequest(const ScenarioPrograms& programs, std::string traces, fs::path bell)
      : programs_(programs), traces_(std::move(traces)), bell_(std::move(bell)) {}

  void look() {
    if (asked_ || access(bell_.c_str(), F_OK) != 0) return;
    asked_ = true;
    judged_ = diagnose(programs_, traces_);
    std::ofstream(bell_.string() + scenario::kJudgedSuffix) << "\n";
  }
  bool asked() const { return asked_; }
  const JudgedFolder& judged() const { return judged_; }

 private:
  const ScenarioPrograms& programs_;
  const std::string traces_;
  const fs::path bell_;
  bool asked_ = false;
  JudgedFolder judged_;
};

// One life of the job, from its start to the end of the last of its processes.
Result<bool> play(const ScenarioPrograms& programs, const scenario::Scenario& s, const ScenarioVariant& variant,
                  int life, JudgeOnRequest* judge, ScenarioRun& run) {
  const fs::path base(run.folder), log = base / "run.log";
  const std::string traces = base / "traces";
  Environment environment = life_of_job(s, variant, life);
  if (judge) environment.emplace_back(scenario::kJudgeVariable, base / "judge");
  const Clock::time_point begin = Clock::now();
  const auto allowed = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s.deadline));
  const pid_t pid = start(SIGTERM, run_command(programs, s, variant, traces), log, log, environment);
  if (pid < 0) return Error{programs.lockstep + ": cannot start it: " + std::strerror(errno)};
  std::optional<ScenarioTeardown> teardown;
  if (variant.teardown) teardown.emplace(pid, traces, s, variant.seed + 1);
  const Ended job = wait_until(pid, begin + allowed, [&] {
    if (judge) judge->look();
    if (teardown) teardown->look();
  });
  run.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
  run.timed_out |= job.timed_out;
  run.run_status = job.status;
  run.left_behind += end_leftovers();
  run.log = read_file(log) + job.tree;
  return true;
}

Result<std::string> make_folder() {
  const char* tmp = std::getenv("TMPDIR");
  std::string path = std::string(tmp && *tmp ? tmp : "/tmp") + "/lockstep-scenario.XXXXXX";
  if (!mkdtemp(path.data())) return Error{path + ": cannot make a folder for the run: " + std::strerror(errno)};
  return path;
}

}  // namespace

JudgedFolder diagnose(const ScenarioPrograms& programs, const std::string& traces) {
  const fs::path base = fs::path(traces).parent_path(), json = base / "diagnosis.json";
  std::error_code none;
  fs::remove(json, none);
  const pid_t pid = start(SIGKILL, {programs.lockstep, "diagnose", traces, "--json"}, json, base / "diagnose.log");
  JudgedFolder judged;
  judged.status = pid < 0 ? -1 : wait_until(pid, Clock::now() + 30s).status;
  judged.diagnosis = read_file(json);
  return judged;
}

Result<ScenarioPrograms> find_scenario_programs() {
  std::error_code ec;
  fs::path self = fs::read_symlink("/proc/self/exe", ec);
  ScenarioPrograms programs{self, self.parent_path() / "lockstep-scene"};
  if (access(programs.player.c_str(), X_OK) != 0)
    return Error{programs.player +
                 ": this program, which plays scenarios, was expected beside lockstep; build or install it"};
  return programs;
}

Result<ScenarioRun> run_scenario(const ScenarioPrograms& programs, const scenario::Scenario& s,
                                 const ScenarioVariant& variant) {
  Result<std::string> folder = make_folder();
  if (!folder) return Error{folder.error()};
  ScenarioRun run;
  run.folder = *folder;
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const std::string traces = fs::path(run.folder) / "traces";
  if (variant.restarted) {
    ScenarioVariant first = variant;
    first.seed += 1'000'000;  // other numbers, so that another rank is the culprit
    first.teardown = false;
    if (Result<bool> played = play(programs, s, first, 0, nullptr, run); !played) return Error{played.error()};
  }
  JudgeOnRequest judge(programs, traces, fs::path(run.folder) / "judge");
  const bool asks = scenario::asks_for_judge(s);
  if (Result<bool> played = play(programs, s, variant, 1, asks ? &judge : nullptr, run); !played)
    return Error{played.error()};
  run.unasked = asks && !judge.asked();
  const JudgedFolder judged = asks ? judge.judged() : diagnose(programs, traces);
  run.diagnose_status = judged.status;
  run.diagnosis = judged.diagnosis;
  run.log += read_file(fs::path(traces).parent_path() / "diagnose.log");
  return run;
}

void remove_run(const ScenarioRun& run) {
  std::error_code ec;
  fs::remove_all(run.folder, ec);
}

}  // namespace lockstep
