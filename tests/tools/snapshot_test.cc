// SPDX-License-Identifier: MIT
//
// Stacks from outside, of a child with known functions on its stack; and that it goes on afterwards as if nothing had
// been.

#include "tools/run/snapshot.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "tools/explain/symbols.h"

using namespace std::chrono_literals;

// Of external linkage and never inlined, so that they have names and frames of their own.
extern "C" {
volatile int lockstep_test_depth = 0;
__attribute__((noinline)) void lockstep_test_waits_here(int fd) {
  char byte;
  while (read(fd, &byte, 1) < 0) continue;
  lockstep_test_depth = 1;
}
__attribute__((noinline)) void lockstep_test_caller(int fd) {
  lockstep_test_waits_here(fd);
  lockstep_test_depth = 2;
}
__attribute__((noinline)) void* lockstep_test_spins(void*) {
  for (;;) lockstep_test_depth = lockstep_test_depth + 1;
}
}

namespace lockstep::test {
namespace {

// A child that waits on a pipe in known functions, with a second thread that spins.
class Child {
 public:
  explicit Child(bool spinning_thread) {
    EXPECT_EQ(pipe(pipe_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(pipe_[1]);
    pthread_t thread;
    if (spinning_thread) {
      pthread_create(&thread, nullptr, lockstep_test_spins, nullptr);
      pthread_setname_np(thread, "spinner");
    }
    lockstep_test_caller(pipe_[0]);
    _exit(7);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void wait_until_it_reads() const {
    for (int tries = 0; tries < 2000; tries++, std::this_thread::sleep_for(1ms)) {
      const std::vector<trace::Snapshot> shots = snapshot_process(pid_, 1, 'r', 1000ms);
      if (!shots.empty() && names_of(shots[0]).find("lockstep_test_waits_here") != std::string::npos) return;
    }
    FAIL() << "the child never came to read";
  }
  // The names of the frames, innermost first, one a word.
  std::string names_of(const trace::Snapshot& shot) const {
    trace::TraceFile file;
    file.modules = modules_of_process(pid_);
    Symbolizer symbolizer;
    std::string names;
    for (const Frame& frame : symbolizer.name_all(file, shot.pcs, true)) names += frame.function + " ";
    return names;
  }
  int let_end() {
    EXPECT_EQ(write(pipe_[1], "x", 1), 1);
    return wait_for_end();
  }
  int wait_for_end() {
    int status = -1;
    for (int tries = 0; tries < 5000; tries++, std::this_thread::sleep_for(1ms))
      if (waitpid(pid_, &status, WNOHANG) == pid_) return status;
    ADD_FAILURE() << "the child does not end";
    return -1;
  }
  bool has_ended() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == pid_;
  }
  int input() const { return pipe_[1]; }
  pid_t pid() const { return pid_; }

 private:
  int pipe_[2];
  pid_t pid_;
};

TEST(Snapshot, NamesTheFunctionsOnTheStack) {
  const Child child(false);
  child.wait_until_it_reads();
  const std::vector<trace::Snapshot> shots = snapshot_process(child.pid(), 3, 'q', 2000ms);
  ASSERT_EQ(shots.size(), 1u);
  EXPECT_EQ(shots[0].tid, static_cast<uint32_t>(child.pid()));
  EXPECT_EQ(shots[0].round, 3u);
  EXPECT_EQ(shots[0].why, 'q');
  const std::string names = child.names_of(shots[0]);
  const size_t inner = names.find("lockstep_test_waits_here"), outer = names.find("lockstep_test_caller");
  ASSERT_NE(inner, std::string::npos) << names;
  ASSERT_NE(outer, std::string::npos) << names;
  EXPECT_LT(inner, outer);
}

TEST(Snapshot, ThreadsThatSpinAreStoppedAndLetGo) {
  Child child(true);
  child.wait_until_it_reads();
  std::vector<trace::Snapshot> shots;
  for (int tries = 0; tries < 200 && shots.size() < 2; tries++) shots = snapshot_process(child.pid(), 1, 'r', 2000ms);
  ASSERT_EQ(shots.size(), 2u);
  EXPECT_NE(child.names_of(shots[1]).find("lockstep_test_spins"), std::string::npos) << child.names_of(shots[1]);
  const int status = child.let_end();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(Snapshot, ASignalOnItsWayIsDelivered) {
  for (int i = 0; i < 30; i++) {
    Child child(true);
    std::thread sender([&] { kill(child.pid(), SIGUSR1); });  // ends it, if it arrives
    snapshot_process(child.pid(), 1, 'r', 1000ms);
    sender.join();
    int status = 0;
    for (int tries = 0; tries < 2000 && waitpid(child.pid(), &status, WNOHANG) == 0; tries++)
      std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
  }
}

TEST(Snapshot, AProcessThatIsGoneHasNone) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE(snapshot_process(pid, 1, 'r', 500ms).empty());
}

// It ends at some moment of a snapshot, by the hand of another process, since any thread of ours that waited for it
// would be told of its stops, too.
TEST(Snapshot, TheExitStatusStaysForTheParent) {
  for (int i = 0; i < 5; i++) {
    Child child(true);
    child.wait_until_it_reads();
    const pid_t hand = fork();
    if (hand == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(1000 * i));
      _exit(write(child.input(), "x", 1) == 1 ? 0 : 1);
    }
    // A pause in between, or on a busy machine the child would be stopped again before it had run at all.
    while (!snapshot_process(child.pid(), 1, 'r', 500ms).empty() && kill(child.pid(), 0) == 0 && !child.has_ended())
      std::this_thread::sleep_for(3ms);
    waitpid(hand, nullptr, 0);
    const int status = child.wait_for_end();
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 7);
  }
}

TEST(Symbols, AnotherBuildIsNotTrusted) {
  trace::TraceFile file;
  file.modules = modules_of_process(getpid());
  const uint64_t pc = reinterpret_cast<uint64_t>(&lockstep_test_caller);
  Symbolizer symbolizer;
  EXPECT_EQ(symbolizer.name(file, pc, true).function, "lockstep_test_caller");
  for (trace::Module& module : file.modules)
    if (!module.build_id.empty()) module.build_id[0] = module.build_id[0] == '0' ? '1' : '0';
  const Frame frame = symbolizer.name(file, pc, true);
  EXPECT_EQ(frame.function, "");
  EXPECT_NE(frame_text(frame).find("snapshot_test+0x"), std::string::npos) << frame_text(frame);
  trace::Symbol symbol;
  symbol.pc = pc;
  symbol.function = "told_by_the_trace";
  file.symbols.push_back(symbol);
  EXPECT_EQ(symbolizer.name(file, pc, true).function, "told_by_the_trace");
}

TEST(Symbols, FramesAsText) {
  EXPECT_EQ(frame_text({"app::(anonymous namespace)::step(int)", "/src/app/train.cc", 88, "app", 0}),
            "app::step (train.cc:88)");
  EXPECT_EQ(frame_text({"", "", 0, "libx.so", 0x1a}), "libx.so+0x1a");
  EXPECT_EQ(frame_json({"next_batch", "/src/train.py", 88, "", 0}), "train.py:88 next_batch");
}

}  // namespace
}  // namespace lockstep::test
