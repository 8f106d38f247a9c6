// SPDX-License-Identifier: MIT
//
// Who a process and its communicators are: the environment, the configuration asked for, generations, blind spots.

#include "tests/interpose/shim_fixture.h"

namespace lockstep {
namespace {

using abi::Fn;
using trace::CommInfo;
using trace::TraceFile;

// --- the process ---

TEST_F(Shim, TheEnvironmentRecordHasWhatMatters) {
  const Environment settings = {
      {"NCCL_ALGO", "Ring"},         {"NCCL_DEBUG", "WARN"},   {"LOCKSTEP_RING_MB", "2"},
      {"CUDA_VISIBLE_DEVICES", "3"}, {"SLURM_JOB_ID", "4711"}, {"SLURM_PROCID", "6"},
      {"OMPI_COMM_WORLD_RANK", "5"}, {"PMI_RANK", "4"},        {"TORCHELASTIC_RUN_ID", "run=9"},
      {"MASTER_ADDR", "node1"},      {"LOCAL_RANK", "1"}};
  Environment all = settings;
  all["SECRET_TOKEN"] = "hidden";
  ASSERT_TRUE(client({"init"}, all).exited_with(0));
  const TraceFile file = only_trace();
  ASSERT_EQ(file.texts.size(), 1u);
  const std::string text = file.texts[0] + "\n";
  for (const auto& [name, value] : settings)
    EXPECT_NE(text.find("\n" + name + "=" + value + "\n"), std::string::npos) << name << " in\n" << text;
  EXPECT_NE(text.find("\nRANK=1\n"), std::string::npos);
  EXPECT_EQ(text.find("hidden"), std::string::npos) << "what is nobody's business was recorded";
  EXPECT_EQ(text.find("no room"), std::string::npos);
}

TEST_F(Shim, ALongEnvironmentIsCutBetweenSettings) {
  Environment all;
  for (char c = 'A'; c <= 'T'; c++) all[std::string("NCCL_LONG_") + c] = std::string(1000, c);
  ASSERT_TRUE(client({"init"}, all).exited_with(0));
  const std::string text = only_trace().texts.at(0) + "\n";
  size_t whole = 0;
  for (const auto& [name, value] : all) whole += text.find("\n" + name + "=" + value + "\n") != std::string::npos;
  EXPECT_GT(whole, 12u);
  EXPECT_LT(whole, 20u) << "nothing was tested";
  EXPECT_NE(text.find("\n" + std::to_string(20 - whole) + " more, for which there was no room\n"), std::string::npos);
}

struct LauncherCase {
  const char* name;
  Environment environment;
  trace::RankSource source;
  int rank, size, local;
};
class LauncherIds : public Shim, public testing::WithParamInterface<LauncherCase> {};
TEST_P(LauncherIds, AreTakenFromTheInnermost) {
  Environment all = {{"RANK", ""}, {"WORLD_SIZE", ""}, {"LOCAL_RANK", ""}};
  for (const auto& [name, value] : GetParam().environment) all[name] = value;
  ASSERT_TRUE(client({"init"}, all).exited_with(0));
  const trace::FileHeader header = only_trace().header;
  EXPECT_EQ(header.rank_source, GetParam().source);
  EXPECT_EQ(header.env_rank, GetParam().rank);
  EXPECT_EQ(header.env_world_size, GetParam().size);
  EXPECT_EQ(header.env_local_rank, GetParam().local);
}
const Environment kSlurm = {{"SLURM_PROCID", "6"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "2"}};
Environment slurm_and(Environment more) {
  more.insert(kSlurm.begin(), kSlurm.end());
  return more;
}
INSTANTIATE_TEST_SUITE_P(
    All, LauncherIds,
    testing::Values(LauncherCase{"none", {}, trace::RankSource::none, -1, -1, -1},
                    LauncherCase{"slurm", kSlurm, trace::RankSource::slurm, 6, 8, 2},
                    LauncherCase{"mpirun_in_slurm",
                                 slurm_and({{"OMPI_COMM_WORLD_RANK", "3"},
                                            {"OMPI_COMM_WORLD_SIZE", "4"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}),
                                 trace::RankSource::ompi, 3, 4, 1},
                    LauncherCase{"torchrun_in_slurm",
                                 slurm_and({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}}),
                                 trace::RankSource::rank, 9, 16, 1},
                    LauncherCase{"pmi", {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, trace::RankSource::pmi, 2, 3, -1}),
    [](const auto& at) { return std::string(at.param.name); });

// --- communicators ---

TEST_F(Shim, ConfigurationsAreReadAsFarAsTheirSizeSays) {
  const Outcome plain = run({kClient, "configs"}, {});
  const Outcome traced = client({"configs"});
  EXPECT_TRUE(plain.exited_with(0) && traced.exited_with(0)) << "a field was read behind the end";
  EXPECT_EQ(traced.out, plain.out);
  const TraceFile file = only_trace();
  ASSERT_EQ(file.comms.size(), 8u);
  const int none = INT32_MIN;
  struct Expected {
    uint32_t size;
    std::vector<int32_t> fields;
    const char *net, *name;
  } const expected[] = {
      {24, {1, none, none, none, none, none, none, none, none}, "", ""},
      {40, {1, 2, 3, 4, none, none, none, none, none}, "socket", ""},
      {48, {1, 2, 3, 4, 5, none, none, none, none}, "socket", ""},
      {48, {1, 2, 3, 4, 5, 6, none, none, none}, "socket", ""},
      {72, {1, 2, 3, 4, 5, 6, 7, 8, 9}, "socket", "named"},
      {sizeof(ncclConfig_t) + 64, {1, 2, 3, 4, 5, 6, 7, 8, 9}, "socket", "named"},
      {0, std::vector<int32_t>(9, 0), "", ""},
      {0, std::vector<int32_t>(9, 0), "", ""},
  };
  for (size_t i = 0; i < std::size(expected); i++) {
    const CommInfo& comm = file.comms[i];
    const trace::CommConfig& c = comm.config;
    EXPECT_EQ(c.size, expected[i].size) << i;
    EXPECT_EQ((std::vector<int32_t>{c.blocking, c.cga_cluster_size, c.min_ctas, c.max_ctas, c.split_share,
                                    c.traffic_class, c.collnet_enable, c.cta_policy, c.shrink_share}),
              expected[i].fields)
        << i;
    EXPECT_STREQ(c.net_name, expected[i].net) << i;
    EXPECT_EQ(comm.name, expected[i].name) << i;
  }
}

TEST_F(Shim, CommunicatorsOfOneIdAreToldApartByGeneration) {
  ASSERT_TRUE(client({"generations"}).exited_with(0));
  const TraceFile file = only_trace();
  ASSERT_EQ(file.comms.size(), 9u);
  for (uint32_t round = 0; round < 3; round++) {
    const CommInfo &comm = file.comms[3 * round], &peer = file.comms[3 * round + 1], &child = file.comms[3 * round + 2];
    EXPECT_EQ(comm.id, file.comms[0].id);
    EXPECT_EQ(peer.id, comm.id);
    EXPECT_EQ(comm.generation, round);
    EXPECT_EQ(peer.generation, round) << "another rank of the same communicator";
    EXPECT_EQ(child.generation, round) << "a child's is its parent's";
    EXPECT_EQ(child.id, file.comms[2].id);
  }
}

TEST_F(Shim, BlindSpotsAreMarkedFromWhereTheyBegin) {
  const Outcome outcome = client({"blind"});
  EXPECT_EQ(outcome.out, run({kClient, "blind"}, {}).out);
  const TraceFile file = only_trace();
  ASSERT_EQ(file.comms.size(), 3u);
  EXPECT_EQ(file.comms[0].blind, 0u);
  EXPECT_EQ(file.comms[1].blind, trace::kBlindWindow);
  EXPECT_EQ(file.comms[2].blind, trace::kBlindDeviceApi);
  EXPECT_EQ(file.blind, trace::kBlindWindow | trace::kBlindDeviceApi);
  ASSERT_EQ(file.marks.size(), 2u) << "once a communicator and kind";
  uint64_t before = 0, after = 0;
  for (const trace::Call& call : of(file, Fn::AllReduce)) (call.count == 20 ? before : after) = call.event;
  const uint64_t serials[] = {2, 3};
  const char* const words[] = {"ncclCommWindowRegister", "ncclDevCommCreate"};
  for (size_t i = 0; i < 2; i++) {
    EXPECT_EQ(file.marks[i].kind, trace::kMarkBlind);
    EXPECT_EQ(file.marks[i].value, serials[i]);
    EXPECT_EQ(file.marks[i].text, words[i]);
    EXPECT_GT(file.marks[i].event, before) << "a call that failed has made nobody blind";
    EXPECT_LT(file.marks[i].event, after);
  }
}

}  // namespace
}  // namespace lockstep
