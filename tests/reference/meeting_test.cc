// SPDX-License-Identifier: MIT
//
// How ranks find each other besides the unique id of ncclCommInitRank: NCCL_COMM_ID, several ids, configurations of
// other versions, and devices that two ranks want.

#include <cstddef>
#include <cstring>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

class Meeting : public ::testing::TestWithParam<As> {};

// For the time of one test; children inherit it.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

void check_all_reduce(ncclComm_t comm, int n) {
  DeviceBuffer<int> data(1);
  data[0] = 1;
  NCCL_OK(ncclAllReduce(data.data, data.data, 1, ncclInt, ncclSum, comm, cudaStreamPerThread));
  CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
  EXPECT_EQ(n, data[0]);
}

// No id travels: each rank makes its own, and comes when it likes; three communicators one after the other.
TEST_P(Meeting, AtANameNeedsNoTransport) {
  const Setting setting("NCCL_COMM_ID", "127.0.0.1:" + std::to_string(20000 + getpid() % 40000));
  run_ranks(GetParam(), 3, [](int rank) {
    CUDA_OK(cudaSetDevice(rank));
    for (int round = 0; round < 3; ++round) {
      if (rank == round % 3) std::this_thread::sleep_for(milliseconds(15));
      ncclUniqueId id;
      NCCL_OK(ncclGetUniqueId(&id));
      ncclComm_t comm = nullptr;
      NCCL_OK(ncclCommInitRank(&comm, 3, id, rank));
      check_all_reduce(comm, 3);
      NCCL_OK(ncclCommDestroy(comm));
    }
  });
}

TEST_P(Meeting, OfSeveralIdsUsesTheFirst) {
  ncclUniqueId ids[3];
  for (ncclUniqueId& id : ids) NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(GetParam(), 3, [&](int rank) {
    CUDA_OK(cudaSetDevice(rank));
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 3, rank, 0, ids, nullptr));
    EXPECT_STREQ("improper usage of ncclCommInitRank: nId = 0, nranks=3", ncclGetLastError(nullptr));
    NCCL_OK(ncclCommInitRankScalable(&comm, 3, rank, 3, ids, nullptr));
    check_all_reduce(comm, 3);
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST_P(Meeting, OfTwoRanksOnOneDeviceIsRefusedIfTheSettingSaysSo) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  const Setting setting("LOCKSTEP_HOST_DUPLICATE_DEVICE", "refuse");
  run_ranks(GetParam(), 3, [&](int rank) {
    CUDA_OK(cudaSetDevice(rank == 2 ? 0 : rank));
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclInvalidUsage, ncclCommInitRank(&comm, 3, id, rank));
    EXPECT_STREQ("Duplicate GPU detected : rank 0 and rank 2 both on CUDA device 1000", ncclGetLastError(nullptr));
    EXPECT_EQ(nullptr, comm);
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, Meeting, ::testing::Values(As::processes, As::threads),
                         [](const auto& each) { return std::string(name_of(each.param)); });

TEST(NamedMeeting, WantsAHostAndAPort) {
  for (const char* bad : {"somewhere", ":70", "a:b", "host:99999", "1:2:3", "host:"}) {
    const Setting setting("NCCL_COMM_ID", bad);
    ncclUniqueId id;
    EXPECT_EQ(ncclInvalidArgument, ncclGetUniqueId(&id)) << bad;
    EXPECT_STREQ("Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
                 ncclGetLastError(nullptr));
  }
  const Setting setting("NCCL_COMM_ID", "[::1]:4711");
  ncclUniqueId one;
  ncclUniqueId two;
  NCCL_OK(ncclGetUniqueId(&one));
  NCCL_OK(ncclGetUniqueId(&two));
  EXPECT_EQ(0, std::memcmp(&one, &two, sizeof one));
}

// Rank 0 never comes, or dies waiting: the others wait on, and take the next one.
TEST(NamedMeeting, OutlivesADeadFirstRank) {
  const Setting setting("NCCL_COMM_ID", "localhost:" + std::to_string(20000 + (getpid() + 7) % 40000));
  const auto join = [](int rank) {
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    NCCL_OK(ncclCommInitRank(&comm, 2, id, rank));
    check_all_reduce(comm, 2);
    NCCL_OK(ncclCommDestroy(comm));
  };
  std::vector<Child> ranks;
  {
    Child doomed([&] { join(0); });
    EXPECT_TRUE(doomed.still_runs_after(milliseconds(50)));
  }
  ranks.emplace_back([&] { join(1); });
  EXPECT_TRUE(ranks[0].still_runs_after(milliseconds(50)));
  ranks.emplace_back([&] { join(0); });
  expect_all_end_well(ranks);
}

void expect_refused(const char* text, ncclConfig_t config, const ncclUniqueId& id) {
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config)) << text;
  EXPECT_STREQ(text, ncclGetLastError(nullptr));
}

TEST(Config, IsCheckedFieldByField) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(As::processes, 1, [&](int) {
    const auto with = [](int ncclConfig_t::*field, int value) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.*field = value;
      return config;
    };
    ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
    plain.magic = 1;
    expect_refused("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER", plain, id);
    expect_refused("Invalid config blocking attribute value 7", with(&ncclConfig_t::blocking, 7), id);
    expect_refused("Invalid config cgaClusterSize attribute value -2", with(&ncclConfig_t::cgaClusterSize, -2), id);
    expect_refused("Invalid config splitShare attribute value 3", with(&ncclConfig_t::splitShare, 3), id);
    expect_refused("Invalid config collnetEnable attribute value 2", with(&ncclConfig_t::collnetEnable, 2), id);
    expect_refused("Invalid config policy attribute value 9", with(&ncclConfig_t::CTAPolicy, 9), id);
    expect_refused("Invalid config shrinkShare attribute value -1", with(&ncclConfig_t::shrinkShare, -1), id);
    expect_refused("Invalid config nvlsCTAs attribute value 0", with(&ncclConfig_t::nvlsCTAs, 0), id);
    expect_refused("Invalid config nChannelsPerNetPeer attribute value 65",
                   with(&ncclConfig_t::nChannelsPerNetPeer, 65), id);
    ncclConfig_t crossed = with(&ncclConfig_t::minCTAs, 8);
    crossed.maxCTAs = 4;
    expect_refused("Invalid config min/max channels attribute value 8/4", crossed, id);

    // An older program's: fields that its version does not have are not looked at, nor what lies beyond its size.
    ncclConfig_t old = NCCL_CONFIG_INITIALIZER;
    old.size = offsetof(ncclConfig_t, cgaClusterSize);
    old.version = NCCL_VERSION(2, 14, 3);
    old.cgaClusterSize = -5;
    old.splitShare = 44;
    ncclConfig_t newer = with(&ncclConfig_t::shrinkShare, 44);
    newer.version = NCCL_VERSION(2, 18, 1);
    for (ncclConfig_t* config : {&old, &newer}) {
      ncclUniqueId own;
      NCCL_OK(ncclGetUniqueId(&own));
      ncclComm_t comm = nullptr;
      NCCL_OK(ncclCommInitRankConfig(&comm, 1, own, 0, config));
      NCCL_OK(ncclCommDestroy(comm));
    }
  });
}

TEST(Init, ChecksItsArgumentsInOrder) {
  ncclUniqueId id;
  NCCL_OK(ncclGetUniqueId(&id));
  run_ranks(As::processes, 1, [&](int) {
    ncclComm_t comm = nullptr;
    const auto expect = [](const char* text, ncclResult_t want, ncclResult_t got) {
      EXPECT_EQ(want, got) << text;
      EXPECT_STREQ(text, ncclGetLastError(nullptr));
    };
    expect("CommInitRank : newcomm argument is NULL", ncclInvalidArgument, ncclCommInitRank(nullptr, 2, id, 9));
    expect("Invalid rank requested : 9/2", ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 9));
    expect("CommInitAll : comms argument is NULL", ncclInvalidArgument, ncclCommInitAll(nullptr, 1, nullptr));
    expect("Invalid device count requested : -1", ncclInvalidArgument, ncclCommInitAll(&comm, -1, nullptr));
    const int beyond[1] = {8};
    expect("Invalid device 8 (totalnDev=8)", ncclInvalidArgument, ncclCommInitAll(&comm, 1, beyond));
    NCCL_OK(ncclCommInitAll(&comm, 0, nullptr));
    NCCL_OK(ncclGroupStart());
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
    EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
  });
}

}  // namespace
}  // namespace lockstep::test
