// SPDX-License-Identifier: MIT
//
// Whether a traced process lives is asked of the kernel, by the lock on its file.

#include <sys/wait.h>

#include "interpose/trace/attach.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep::trace {
namespace {

TEST(TraceLiveness, TheLockLivesAndDiesWithItsProcess) {
  TempFolder folder;
  int ready[2], leave[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(leave), 0);
  const pid_t child = fork();
  if (child == 0) {
    Trace trace = {};
    FileHeader header = test_header();
    header.pid_start_ticks = 1;  // not the real one, so that only the lock can say "alive"
    const char ok = create(trace, folder.path().c_str(), header, clocks_now(), clocks_now, kSegmentBytes).what == nullptr;
    if (write(ready[1], &ok, 1) != 1) _exit(1);
    char byte;
    if (read(leave[0], &byte, 1) < 0) _exit(1);
    _exit(0);
  }
  char ok = 0;
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  ASSERT_EQ(ok, 1);
  ASSERT_EQ(folder.traces().size(), 1u);
  const Result<TraceFile> alive = read_trace(folder.traces()[0]);
  ASSERT_TRUE(alive) << alive.error();
  EXPECT_EQ(look_alive(*alive), Liveness::alive);
  const std::string copied = folder.path() + "/copy.lstrace";
  std::filesystem::copy_file(folder.traces()[0], copied);
  const Result<TraceFile> copy = read_trace(copied);
  ASSERT_TRUE(copy);
  EXPECT_EQ(look_alive(*copy), Liveness::elsewhere);  // its header names no boot of this machine
  kill(child, SIGKILL);
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_NE(look_alive(*alive), Liveness::alive);
  for (int fd : {ready[0], ready[1], leave[0], leave[1]}) close(fd);
}

}  // namespace
}  // namespace lockstep::trace
