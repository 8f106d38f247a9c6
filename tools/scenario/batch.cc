// SPDX-License-Identifier: MIT

#include "tools/scenario/batch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/report/verdict_form.h"

namespace lockstep {
namespace {

using nlohmann::json;
using scenario::Scenario;

// What went wrong with the run itself, whatever the verdict.
void add_run_differences(const Scenario& s, const ScenarioRun& run, ScenarioOutcome& outcome) {
  std::vector<std::string>& out = outcome.differences;
  if (run.timed_out)
    out.push_back("the job was still running after its deadline of " + std::to_string(static_cast<int>(s.deadline)) +
                  " s");
  if (!run.left_behind.empty()) out.push_back("processes outlived the job: " + run.left_behind);
  if (run.unasked) out.push_back("no rank came to where it says \"judge\", so no verdict was asked for");
  if (run.timed_out || s.expect.status.size() != 1 || scenario::asks_for_judge(s)) return;
  if (s.expect.status[0] == "hung" && s.kill_on_hang && run.run_status != 1)
    out.push_back("exit status of lockstep run: expected 1 after a hang that it ended, got " +
                  std::to_string(run.run_status));
  if (s.expect.status[0] == "healthy" && run.run_status != 0)
    out.push_back("exit status of lockstep run: expected 0 from a healthy job, got " + std::to_string(run.run_status));
}

PlayedScenario play_one(const ScenarioPrograms& programs, const PlannedScenario& plan, bool keep) {
  PlayedScenario played;
  Result<ScenarioRun> run = run_scenario(programs, plan.scenario, plan.variant);
  if (!run) {
    played.error = run.error();
    return played;
  }
  played.run = std::move(*run);
  played.outcome = judge_scenario(plan.scenario, plan.variant, played.run.diagnosis, played.run.diagnose_status);
  for (const std::string& complaint : form_complaints(played.run.diagnosis))
    played.outcome.differences.push_back("the verdict's JSON does not keep to the schema: " + complaint);
  judge_again(programs, plan.scenario, plan.variant, played.run, played.outcome);
  add_run_differences(plan.scenario, played.run, played.outcome);
  if (!played.outcome.differences.empty()) played.outcome.score.right = 0;
  if (!keep) remove_run(played.run);
  return played;
}

// --- what a worker tells ---

json to_json(const PlayedScenario& played) {
  const ScenarioScore& score = played.outcome.score;
  return {{"error", played.error},
          {"folder", played.run.folder},
          {"seconds", played.run.seconds},
          {"log", played.run.log},
          {"diagnosis", played.run.diagnosis},
          {"differences", played.outcome.differences},
          {"verdict", played.outcome.verdict},
          {"score",
           {score.runs, score.right, score.kinds, score.kinds_right, score.culprits, score.culprits_right, score.calls,
            score.calls_right, score.false_accusations}}};
}

PlayedScenario from_json(const json& told) {
  PlayedScenario played;
  played.error = told["error"];
  played.run.folder = told["folder"];
  played.run.seconds = told["seconds"];
  played.run.log = told["log"];
  played.run.diagnosis = told["diagnosis"];
  played.outcome.differences = told["differences"].get<std::vector<std::string>>();
  played.outcome.verdict = told["verdict"];
  ScenarioScore& score = played.outcome.score;
  int* const fields[] = {&score.runs,        &score.right,       &score.kinds,
                         &score.kinds_right, &score.culprits,    &score.culprits_right,
                         &score.calls,       &score.calls_right, &score.false_accusations};
  for (size_t i = 0; i < std::size(fields); i++) *fields[i] = told["score"][i];
  return played;
}

struct Worker {
  size_t plan = 0;
  int result = -1;  // a file in memory
};

[[noreturn]] void work(const ScenarioPrograms& programs, const PlannedScenario& plan, bool keep, int result,
                       pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const std::string text = to_json(play_one(programs, plan, keep)).dump(-1, ' ', false, json::error_handler_t::replace);
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(result, text.data() + at, text.size() - at);
    if (n < 0 && errno != EINTR) _exit(1);
    if (n > 0) at += static_cast<size_t>(n);
  }
  _exit(0);
}

PlayedScenario read_result(const PlannedScenario& plan, int result, int wait_status) {
  std::string text(static_cast<size_t>(std::max<off_t>(lseek(result, 0, SEEK_END), 0)), '\0');
  const ssize_t n = pread(result, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  const json told = json::parse(text, nullptr, false);
  if (told.is_object()) return from_json(told);
  PlayedScenario broken;
  broken.error = plan.scenario.path + ": the process that played it ended early, with " +
                 (WIFSIGNALED(wait_status) ? "signal " + std::to_string(WTERMSIG(wait_status))
                                           : "status " + std::to_string(WEXITSTATUS(wait_status)));
  return broken;
}

}  // namespace

void play_scenarios(const ScenarioPrograms& programs, const std::vector<PlannedScenario>& plans, int jobs, bool keep,
                    const std::function<void(size_t plan, const PlayedScenario&)>& done) {
  const pid_t self = getpid();
  std::map<pid_t, Worker> workers;
  size_t next = 0;
  while (next < plans.size() || !workers.empty()) {
    while (next < plans.size() && workers.size() < static_cast<size_t>(jobs)) {
      const Worker worker{next++, memfd_create("lockstep-scenario", MFD_CLOEXEC)};
      const pid_t pid = worker.result < 0 ? -1 : fork();
      if (pid == 0) work(programs, plans[worker.plan], keep, worker.result, self);
      if (pid > 0) {
        workers[pid] = worker;
        continue;
      }
      PlayedScenario failed;
      failed.error = plans[worker.plan].scenario.path + ": cannot start a process to play it: " + std::strerror(errno);
      if (worker.result >= 0) close(worker.result);
      done(worker.plan, failed);
    }
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const auto worker = workers.find(ended);
    if (worker == workers.end()) continue;
    done(worker->second.plan, read_result(plans[worker->second.plan], worker->second.result, status));
    close(worker->second.result);
    workers.erase(worker);
  }
}

}  // namespace lockstep
