// SPDX-License-Identifier: MIT
//
// `lockstep run` and the other commands as a person uses them: exit statuses, signals, bad input, and that nothing of
// ours outlives the program. Jobs with a verdict are in tests/hangs and tests/demo; here is one small one.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/demo/process.h"
#include "tools/explain/findings_page.h"
#include "tools/judge/finding.h"
#include "tools/report/json_schema.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

class Run : public testing::Test {
 protected:
  Outcome lockstep(Words words, std::chrono::seconds deadline = 20s) {
    words.insert(words.begin(), LOCKSTEP_CLI);
    return run_program(words, deadline);
  }
  Outcome run(Words words) {
    Words command{"run", "--dir", traces_, "--"};
    command.insert(command.end(), words.begin(), words.end());
    return lockstep(command);
  }
  TemporaryFolder folder_;
  std::string traces_ = folder_.path("traces");
};

int lines_in(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

TEST_F(Run, PassesTheExitStatusAndTheOutput) {
  for (const int status : {0, 1, 42}) {
    const Outcome outcome = run({"sh", "-c", "echo hello; exit " + std::to_string(status)});
    EXPECT_EQ(outcome.status, status);
    EXPECT_EQ(outcome.out, "hello\n");
    EXPECT_NE(outcome.err.find(traces_), std::string::npos) << outcome.err;
  }
}

TEST_F(Run, ASignalIs128More) {
  EXPECT_EQ(run({"sh", "-c", "kill -TERM $$"}).status, 128 + SIGTERM);
  EXPECT_EQ(run({"sh", "-c", "kill -KILL $$"}).status, 128 + SIGKILL);
}

TEST_F(Run, ArgumentsReachTheProgramUnread) {
  EXPECT_EQ(run({"printf", "%s|", "--json", "--", "--dir", "x y"}).out, "--json|--|--dir|x y|");
  EXPECT_EQ(lockstep({"run", "--dir", traces_, "printf", "%s|", "--dir", "a", "--", "b"}).out, "--dir|a|--|b|");
}

TEST_F(Run, BadUsageIsOneSentenceAndTwo) {
  std::ofstream(folder_.path("file")) << "x";
  const std::pair<Words, const char*> cases[] = {
      {{"run", "--dir", traces_, "--", "no-such-program-anywhere"}, "no-such-program-anywhere"},
      {{"run", "--dir", folder_.path("file"), "--", "true"}, "file"},
      {{"run", "--dir", folder_.path("file") + "/below", "--", "true"}, "below"},
      {{"run", "--dir", "/proc/lockstep", "--", "true"}, "/proc/lockstep"},
      {{"run"}, "no program"},
      {{"run", "--hang-seconds", "soon", "--", "true"}, "soon"},
      {{"run", "--no-such-option", "--", "true"}, "lockstep"},
      {{"diagnose"}, "DIR"},
      {{"diagnose", folder_.path("nowhere")}, "nowhere"},
      {{"diagnose", "--debug-dir", folder_.path("nowhere"), folder_.path("")}, "nowhere"},
      {{"diagnose", "--explain", "bad-luck"}, "bad-luck"},
      {{"diagnose", folder_.path("file")}, "file"},
      {{"show", folder_.path("file")}, "file"},
      {{"frobnicate"}, "lockstep"},
      {{}, "lockstep"},
  };
  for (const auto& [words, mentioned] : cases) {
    const Outcome outcome = lockstep(words);
    SCOPED_TRACE(outcome.err);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(lines_in(outcome.err), 1);
    EXPECT_NE(outcome.err.find(mentioned), std::string::npos) << mentioned;
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(Run, ExplainPrintsWhatThePageSays) {
  for (const std::string& kind : kind_names()) {
    const Outcome outcome = lockstep({"diagnose", "--explain", kind});
    EXPECT_EQ(outcome.status, 0) << kind;
    EXPECT_EQ(outcome.out, findings_section(kind));
  }
}

TEST_F(Run, HelpHasAnExampleEverywhere) {
  for (const Words& words :
       {Words{"--help"}, Words{"run", "--help"}, Words{"diagnose", "--help"}, Words{"show", "--help"}}) {
    const Outcome outcome = lockstep(words);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.out.find("Example:"), std::string::npos);
  }
  EXPECT_EQ(lockstep({"--version"}).out.rfind("lockstep ", 0), 0u);
}

// Started apart, so that the test can send signals to the supervisor alone.
class Background {
 public:
  explicit Background(const Words& words) {
    pid_ = fork();
    if (pid_ != 0) return;
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Background() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  pid_t pid() const { return pid_; }
  int wait_for_end() {
    int status = -1;
    for (int tries = 0; tries < 2000; tries++, std::this_thread::sleep_for(5ms))
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
    return -1;
  }

 private:
  pid_t pid_;
};

bool appears(const std::string& path) {
  for (int tries = 0; tries < 2000 && !fs::exists(path); tries++) std::this_thread::sleep_for(5ms);
  return fs::exists(path);
}

TEST_F(Run, SignalsArePassedOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string ready = folder_.path("ready"), told = folder_.path("told");
    fs::remove(ready), fs::remove(told);
    const std::string script =
        "trap 'touch " + told + "; exit 9' TERM INT USR1; touch " + ready + "; while :; do sleep 0.02; done";
    Background supervisor({LOCKSTEP_CLI, "run", "--dir", traces_, "--", "bash", "-c", script});
    ASSERT_TRUE(appears(ready));
    kill(supervisor.pid(), signal);
    EXPECT_EQ(supervisor.wait_for_end(), 9);
    EXPECT_TRUE(fs::exists(told));
  }
}

TEST_F(Run, LeavesNothingBehind) {
  run({"true"});
  for (int tries = 0; tries < 100 && !processes_with(traces_).empty(); tries++) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(processes_with(traces_).empty());
}

TEST_F(Run, TheFolderIsMadeAndNamed) {
  const Outcome outcome =
      run_program({"sh", "-c", "cd " + folder_.path("") + " && exec " LOCKSTEP_CLI " run -- true"}, 20s);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(fs::exists(folder_.path("lockstep-traces")));
  EXPECT_NE(outcome.err.find("/lockstep-traces/"), std::string::npos);
}

#ifdef LOCKSTEP_SCENE
// A whole small job: hang, verdict once, the tree ended, and the traces read again in every way.
TEST_F(Run, AHangIsJudgedOnceAndEnded) {
  std::ofstream(folder_.path("one.hang"))
      << "title: rank 1 stays away\nsource: none\nranks: 3\n"
         "each: repeat 2 { step; allreduce world 64; sync }\n"
         "rank 0,2: allreduce world 64; sync\nrank 1: in data_loader_next sleep forever\n"
         "expect: status hung; kind missing-call; culprits 1\n";
  const Outcome job = lockstep({"run", "--host", "--dir", traces_, "--hang-seconds", "1", "--kill-on-hang", "--",
                                LOCKSTEP_SCENE, folder_.path("one.hang")},
                               30s);
  EXPECT_EQ(job.status, 1) << job.err;
  const size_t said = job.err.find("rank 1 (host ");
  ASSERT_NE(said, std::string::npos) << job.err;
  EXPECT_EQ(job.err.find("rank 1 (host ", said + 1), std::string::npos) << job.err;
  EXPECT_NE(job.err.find("data_loader_next"), std::string::npos) << job.err;
  EXPECT_TRUE(processes_with(traces_).empty());

  const Outcome verdict = lockstep({"diagnose", traces_, "--json"});
  EXPECT_EQ(verdict.status, 1);
  const nlohmann::json document = nlohmann::json::parse(verdict.out);
  EXPECT_EQ(check_schema(document, nlohmann::json::parse(std::ifstream(DIAGNOSE_SCHEMA))), Words{});
  EXPECT_EQ(document["findings"][0]["kind"], "missing-call");
  EXPECT_EQ(lockstep({"diagnose", traces_, "--hang-seconds", "1000"}).status, 0);
  for (const auto& entry : fs::directory_iterator(traces_)) {
    if (entry.path().extension() != ".lstrace") continue;
    const Outcome shown = lockstep({"show", entry.path()});
    EXPECT_EQ(shown.status, 0);
    EXPECT_NE(shown.out.find("AllReduce comm 1 #0"), std::string::npos) << shown.out;
    const Outcome as_json = lockstep({"show", "--json", "--modules", entry.path()});
    EXPECT_FALSE(nlohmann::json::parse(as_json.out)["snapshots"].empty());
  }
}
#endif

}  // namespace
}  // namespace lockstep::test
