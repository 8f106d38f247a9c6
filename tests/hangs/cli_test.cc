// SPDX-License-Identifier: MIT
//
// `lockstep scenario` and the player from outside: bad input costs one sentence and status 2, a wrong verdict costs
// status 1, and however a run ends, it leaves neither processes nor files behind.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder of its own for each test, which is also where runs keep their traces.
class ScenarioCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "scenario_cli.XXXXXX";
    ASSERT_TRUE(mkdtemp(path.data()));
    folder_ = path;
    fs::create_directory(folder_ / "tmp");
    if (const char* tmp = std::getenv("TMPDIR")) outer_tmp_ = tmp;
    setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
  }
  void TearDown() override {
    outer_tmp_.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", outer_tmp_.c_str(), 1);
    fs::remove_all(folder_);
  }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  int run(const std::string& command) {
    std::string line = "timeout 40 " + command + " >" + (folder_ / "out").string() + " 2>" + (folder_ / "err").string();
    int status = std::system(line.c_str());
    out_ = read(folder_ / "out");
    err_ = read(folder_ / "err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // Processes whose command line speaks of our folder, other than shells around us.
  int processes() const {
    int found = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      std::string pid = entry.path().filename();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      found += read(entry.path() / "cmdline").find(folder_.string()) != std::string::npos;
    }
    return found;
  }
  bool processes_become(const std::function<bool(int)>& as_wanted) const {
    for (auto end = Clock::now() + 20s; Clock::now() < end; std::this_thread::sleep_for(20ms))
      if (as_wanted(processes())) return true;
    return false;
  }
  bool processes_end() const {
    return processes_become([](int n) { return n == 0; });
  }
  bool left_files() const { return !fs::is_empty(folder_ / "tmp"); }

  void expect_one_sentence(const std::string& piece) {
    EXPECT_NE(err_.find(piece), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  }

  fs::path folder_;
  std::string out_, err_, outer_tmp_;
  const std::string tool_ = std::string(LOCKSTEP_PROGRAM) + " scenario ";
  const std::string player_ = std::string(PLAYER_PROGRAM) + " ";
};

constexpr const char* kHealthy =
    "title: t\nranks: 2\neach: step; allreduce world 8; sync\nexpect: status healthy; kind none\n";
constexpr const char* kHung =
    "title: t\nranks: 2\nrank 0: allreduce world 8; sync\nrank 1: in evaluate sleep forever\nexpect: status hung\n";

TEST_F(ScenarioCommand, BadFilesCostOneSentence) {
  std::string bad = write("bad.hang", "title: t\nranks: 2\neach: dance\n");
  for (const std::string& program : {tool_, player_}) {
    EXPECT_EQ(run(program + bad), 2);
    expect_one_sentence("bad.hang:3: \"dance\" is no statement");
    EXPECT_EQ(run(program + (folder_ / "none.hang").string()), 2);
    expect_one_sentence("none.hang: cannot read this scenario file");
  }
  EXPECT_FALSE(left_files());
}

TEST_F(ScenarioCommand, BadUsageCostsOneSentence) {
  std::string good = write("good.hang", kHealthy);
  for (const std::string& program : {tool_, player_}) {
    EXPECT_EQ(run(program + good + " --permute x"), 2);
    expect_one_sentence("--permute");
    EXPECT_EQ(run(program + good + " --shift -1"), 2);
    expect_one_sentence("--shift");
    EXPECT_EQ(run(program + good + " --ranks-as fibres"), 2);
    expect_one_sentence("threads or processes");
    EXPECT_EQ(run(program), 2);
    EXPECT_EQ(run(program + good + " --unheard-of"), 2);
    EXPECT_EQ(run(program + "--help"), 0);
    EXPECT_NE(out_.find("example:") == std::string::npos, out_.find("Example:") == std::string::npos) << out_;
  }
  EXPECT_FALSE(left_files());
}

TEST_F(ScenarioCommand, UntracedRanksCannotBeThreads) {
  std::string file = write("u.hang", "title: t\nranks: 2\nuntraced: 1\nexpect: status healthy\n");
  for (const std::string& program : {tool_, player_}) {
    EXPECT_EQ(run(program + file + " --ranks-as threads"), 2);
    expect_one_sentence("cannot be threads");
  }
}

TEST_F(ScenarioCommand, SaysOkAndLeavesNothing) {
  EXPECT_EQ(run(tool_ + write("good.hang", kHealthy) + " --permute 3 --shift 2"), 0) << out_ << err_;
  EXPECT_EQ(out_.rfind("ok", 0), 0u) << out_;
  EXPECT_NE(out_.find("--permute 3 --shift 2"), std::string::npos) << out_;
  EXPECT_FALSE(left_files());
}

TEST_F(ScenarioCommand, SaysWhatDiffers) {
  std::string wrong = kHealthy;
  wrong.replace(wrong.find("healthy"), 7, "hung");
  std::string files = write("good.hang", kHealthy) + " " + write("wrong.hang", wrong);
  EXPECT_EQ(run(tool_ + files), 1);
  EXPECT_NE(out_.find("status: expected hung, got healthy"), std::string::npos) << out_;
  EXPECT_NE(out_.find("score: right 1/2, kind 2/2"), std::string::npos) << out_;
  EXPECT_EQ(run(tool_ + files + " --json"), 1);
  EXPECT_NE(out_.find("\"right\": 1"), std::string::npos) << out_;
}

TEST_F(ScenarioCommand, KeepsTheTracesWhenAsked) {
  EXPECT_EQ(run(tool_ + write("good.hang", kHealthy) + " --keep"), 0);
  EXPECT_NE(out_.find("kept: " + (folder_ / "tmp").string()), std::string::npos) << out_;
  EXPECT_TRUE(left_files());
}

TEST_F(ScenarioCommand, RandomMeansANewRunEachTime) {
  std::string file = write("good.hang", kHealthy);
  EXPECT_EQ(run(tool_ + file + " " + file + " --permute random --shift random"), 0) << out_;
  std::string first = out_.substr(out_.find("--permute"), 20);
  EXPECT_NE(out_.rfind(first), std::string::npos);
  EXPECT_NE(out_.find(" --shift "), std::string::npos) << out_;
}

TEST_F(ScenarioCommand, ARunThatNeverEndsIsEndedAtItsDeadline) {
  std::string text = kHung;
  text.insert(text.find("rank 0"), "kill-on-hang: no\ndeadline: 1\n");
  EXPECT_EQ(run(tool_ + write("hung.hang", text)), 1);
  EXPECT_NE(out_.find("still running after its deadline of 1 s"), std::string::npos) << out_;
  EXPECT_TRUE(processes_end());
  EXPECT_FALSE(left_files());
}

// SIGKILL leaves no time to clean up, so this is the doing of the kernel: every child asked for a signal in that case.
TEST_F(ScenarioCommand, NoProcessOutlivesAKilledTool) {
  std::string text = kHung;
  text.insert(text.find("rank 0"), "kill-on-hang: no\n");
  std::string file = write("hung.hang", text);
  pid_t pid = fork();
  if (pid == 0) {
    execl(LOCKSTEP_PROGRAM, "lockstep", "scenario", file.c_str(), nullptr);
    _exit(127);
  }
  // The tool, lockstep run, the player, its ranks.
  EXPECT_TRUE(processes_become([](int n) { return n >= 4; }));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE(processes_end());
}

TEST_F(ScenarioCommand, RanksAreNumberedByTheSeed) {
  std::string file = write("h.hang", "title: t\nranks: 4\nexpect: status healthy\n");
  EXPECT_EQ(run(player_ + file + " --print-ranks"), 0);
  EXPECT_EQ(out_, "0 1 2 3\n");
  EXPECT_EQ(run(player_ + file + " --permute 7 --print-ranks"), 0);
  std::string sorted = out_;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, "\n   0123");
  EXPECT_NE(out_, "0 1 2 3\n");
}

TEST_F(ScenarioCommand, ThePlayerReportsHowItsRanksEnded) {
  auto play = [&](const std::string& statement) {
    return run(player_ + write("p.hang", "title: t\nranks: 2\nrank 1: " + statement + "\nexpect: status healthy\n"));
  };
  EXPECT_EQ(play("sync"), 0) << err_;
  EXPECT_EQ(play("exit 3"), 3);
  EXPECT_EQ(play("_exit 4"), 4);
  EXPECT_EQ(play("kill"), 128 + SIGKILL);
  EXPECT_EQ(play("abort"), 128 + SIGABRT);
  EXPECT_EQ(play("in run_forward segv"), 128 + SIGSEGV);
  EXPECT_EQ(play("destroy world; destroy world"), 1);
  EXPECT_NE(err_.find("p.hang:3: rank 1: world: this rank has no such communicator now"), std::string::npos) << err_;
}

}  // namespace
