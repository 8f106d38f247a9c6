// SPDX-License-Identifier: MIT
//
// What recording may take from a job: no more disk and no more memory than docs/shim.md says, with any number of
// threads, stacks and communicators. Memory is the process's anonymous pages, as the kernel counts them, beside a run
// without the shim.

#include <sys/stat.h>

#include <sstream>

#include "tests/interpose/no_harm.h"

namespace lockstep {
namespace {

const std::string kHarm = HARM_CLIENT, kCuda = FAKE_CUDA;

// Of docs/shim.md, in KiB.
constexpr long kFixed = 3584, kEachThread = 280, kEachPeerPage = 4, kEachWatched = 20;
constexpr long kBesideTheRing = 17613;  // 17.2 MiB

class Bounds : public NoHarm {
 protected:
  std::vector<long> figures(std::vector<std::string> arguments, Environment environment, bool traced) {
    arguments.insert(arguments.begin(), kHarm);
    environment["LOCKSTEP_DIR"] = traces();
    if (!traced)
      environment["LD_PRELOAD"] = "";
    else if (environment["LD_PRELOAD"].empty())
      environment["LD_PRELOAD"] = shim_;
    const Outcome outcome = run(arguments, environment, 120);
    EXPECT_TRUE(outcome.exited_with(0)) << outcome.err;
    std::istringstream text(outcome.out);
    std::vector<long> out;
    for (long value; text >> value;) out.push_back(value);
    return out;
  }
  // Of all that lies in the folder, as the disk counts it.
  long disk_kib() const {
    long sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(traces())) {
      struct stat info;
      if (entry.is_regular_file() && stat(entry.path().c_str(), &info) == 0) sum += info.st_blocks / 2;
    }
    return sum;
  }
};

// Ten waves of 64 threads, 102 400 stacks: more than the arena holds, and more calls than the ring does.
const std::vector<std::string> kWaves = {"memory", "10", "64", "160"};

TEST_F(Bounds, OfThreadsThatComeAndGo) {
  const std::vector<long> plain = figures(kWaves, {}, false);
  const std::vector<long> traced = figures(kWaves, {{"LOCKSTEP_RING_MB", "2"}}, true);
  ASSERT_EQ(plain.size(), 3u);
  ASSERT_EQ(traced.size(), 3u);
  EXPECT_LE(traced[0] - plain[0], kFixed + 64 * kEachThread) << "with the first wave";
  EXPECT_LE(traced[1] - plain[1], kFixed + 64 * kEachThread) << "with the last wave";
  EXPECT_LE(traced[2] - plain[2], kFixed) << "what threads had is not given back";
  EXPECT_GT(traced[1] - plain[1], 64 * kEachThread / 2) << "less than is documented: is this measuring anything?";
  const trace::TraceFile file = only_trace();
  EXPECT_GT(file.overwritten, 0u) << "the ring was not full";
  EXPECT_GT(file.arena_dropped, 0u) << "there was room for all stacks";
  EXPECT_LE(disk_kib(), kBesideTheRing + 2 * 1024);
  EXPECT_GT(disk_kib(), 2 * 1024);
}

TEST_F(Bounds, OfFullMode) {
  figures(kWaves, {{"LOCKSTEP_MODE", "full"}, {"LOCKSTEP_FULL_MB", "3"}}, true);
  EXPECT_GT(only_trace().dropped, 0u) << "the bound was not reached";
  EXPECT_LE(disk_kib(), kBesideTheRing + 3 * 1024);
}

TEST_F(Bounds, OfCommunicators) {
  const std::vector<long> plain = figures({"many-communicators", "1000", "300"}, {}, false);
  const std::vector<long> traced = figures({"many-communicators", "1000", "300"}, {{"LOCKSTEP_RING_MB", "1"}}, true);
  ASSERT_EQ(plain.size() + traced.size(), 2u);
  EXPECT_LE(traced[0] - plain[0], kFixed + kEachThread + 1000 * 2 * kEachPeerPage);
  EXPECT_LE(disk_kib(), kBesideTheRing + 1024);
}

// Operations that never start: every communicator keeps as many events as it may have, which here are 32 bytes each.
TEST_F(Bounds, OfCommunicatorsThatAreWatched) {
  constexpr long kEventsOfTheDriver = 512 * 32 / 1024;
  const std::vector<long> plain = figures({"many-communicators", "200", "1000"}, {}, false);
  const std::vector<long> traced = figures({"many-communicators", "200", "1000"},
                                           {{"LD_PRELOAD", shim_ + " " + kCuda}, {"LOCKSTEP_RING_MB", "1"}}, true);
  ASSERT_EQ(plain.size() + traced.size(), 2u);
  const trace::TraceFile file = only_trace();
  EXPECT_EQ(file.states, trace::StatesKnown::watched);
  EXPECT_GT(file.comms.at(199).unwatched, 0u) << "there were events for all";
  EXPECT_LE(traced[0] - plain[0], kFixed + kEachThread + 200 * (2 * kEachPeerPage + kEachWatched + kEventsOfTheDriver));
}

}  // namespace
}  // namespace lockstep
