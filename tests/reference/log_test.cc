// SPDX-License-Identifier: MIT
//
// NCCL_DEBUG's lines: which are printed where, and that they have the shape that tools read.

#include <fcntl.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

// What two ranks print into a file each; everything that differs from run to run is masked.
class Log : public ::testing::Test {
 protected:
  Log() {
    char folder[] = "/tmp/lockstep-log-XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~Log() override {
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_CONF_FILE"}) unsetenv(name);
    const std::string command = "rm -rf " + folder_;
    EXPECT_EQ(0, std::system(command.c_str()));
  }
  std::string read(int rank) {
    std::ifstream file(folder_ + "/" + std::to_string(rank));
    std::string text((std::istreambuf_iterator<char>(file)), {});
    text = std::regex_replace(text, std::regex("[^\n]*:[0-9]+:[0-9]+ \\[([0-9])\\] NCCL"), "host:pid:tid [$1] NCCL");
    text = std::regex_replace(text, std::regex("0x[0-9a-f]+"), "PTR");
    return text;
  }
  void run(const std::function<void(Rank&)>& body) {
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    run_ranks(As::processes, 2, [&](int rank) {
      setenv("NCCL_DEBUG_FILE", (folder_ + "/" + std::to_string(rank)).c_str(), 1);
      ncclResetDebugInit();
      Rank me(rank, 2, id);
      body(me);
      me.close();
    });
  }
  std::string folder_;
};

TEST_F(Log, HasALineForEachCall) {
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
  run([](Rank& me) {
    DeviceBuffer<float> data(8);
    NCCL_OK(ncclAllReduce(data.data, &data[4], 4, ncclFloat, ncclMax, me.comm, me.stream));
    NCCL_OK(ncclBroadcast(data.data, data.data, 0, ncclFloat, 1, me.comm, me.stream));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclSend(data.data, 3, ncclFloat, 1 - me.rank, me.comm, me.stream));
    NCCL_OK(ncclRecv(&data[4], 3, ncclFloat, 1 - me.rank, me.comm, me.stream));
    NCCL_OK(ncclGroupEnd());
    NCCL_OK(ncclAlltoAll(data.data, &data[4], 1, ncclFloat, me.comm, me.stream));
    me.sync();
  });
  const auto line = [](const char* name, int n, const char* send, const char* recv, int count, int op, int root) {
    return "host:pid:tid [1] NCCL INFO " + std::string(name) + ": opCount " + std::to_string(n) + " sendbuff " + send +
           " recvbuff " + recv + " count " + std::to_string(count) + " datatype 7 op " + std::to_string(op) + " root " +
           std::to_string(root) + " comm PTR [nranks=2] stream PTR\n";
  };
  EXPECT_EQ(
      "host:pid:tid [1] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
      "host:pid:tid [1] NCCL INFO This is the Lockstep host runtime: CPU memory, no GPU, no network\n" +
          line("AllReduce", 0, "PTR", "PTR", 4, 2, 0) + line("Broadcast", 1, "PTR", "PTR", 0, 0, 1) +
          line("Send", 2, "(nil)", "PTR", 3, 0, 0) + line("Recv", 3, "(nil)", "PTR", 3, 0, 0) +
          line("AlltoAll", 4, "PTR", "PTR", 1, 0, 0),
      read(1));
}

TEST_F(Log, TellsOfTheLifeOfCommunicators) {
  setenv("NCCL_DEBUG", "INFO", 1);
  run([](Rank& me) {
    ncclComm_t part = nullptr;
    NCCL_OK(ncclCommSplit(me.comm, 3, 0, &part, nullptr));
    NCCL_OK(ncclCommAbort(part));
  });
  const std::string text = read(1);
  const auto has = [&](const std::string& line) {
    EXPECT_NE(std::string::npos, text.find("host:pid:tid [1] NCCL INFO " + line + "\n")) << line << "\nin\n" << text;
  };
  const std::string who = " comm PTR rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 2000 ";
  has("ncclCommInitRank" + who + "commId PTR - Init START");
  has("ncclCommInitRank" + who + "commId PTR - Init COMPLETE");
  has("ncclCommSplit" + who + "parent PTR splitCount 1 color 3 key 0- Init START");
  has("ncclCommSplit" + who + "parent PTR splitCount 1 color 3 key 0 - Init COMPLETE");
  has("comm PTR rank 1 nranks 2 cudaDev 1 busId 2000 - Abort COMPLETE");
  has("comm PTR rank 1 nranks 2 cudaDev 1 busId 2000 - Destroy COMPLETE");
}

TEST_F(Log, IsSilentUnlessAskedFor) {
  run([](Rank&) {});
  EXPECT_EQ("", read(0));
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_SUBSYS", "ALL", 1);
  run([](Rank& me) { ncclAllReduce(nullptr, nullptr, 1, ncclInt, ncclSum, nullptr, me.stream); });
  EXPECT_EQ(0u, read(0).find("NCCL version 2.28.9+cuda13.0\n\n["));
  EXPECT_NE(std::string::npos, read(1).find("NCCL WARN AllReduce : comm argument is NULL\n")) << read(1);
  EXPECT_EQ(std::string::npos, read(1).find("INFO"));
}

TEST_F(Log, TakesItsSettingsFromAFileToo) {
  const std::string settings = folder_ + "/conf";
  std::ofstream(settings) << "# ours\nNCCL_DEBUG=INFO\n  NCCL_DEBUG_SUBSYS = COLL\nNCCL_DEBUG_SUBSYS=INIT\n";
  setenv("NCCL_CONF_FILE", settings.c_str(), 1);
  run([](Rank&) {});
  EXPECT_NE(std::string::npos, read(0).find("NCCL INFO NCCL version")) << read(0);
}

}  // namespace
}  // namespace lockstep::test
