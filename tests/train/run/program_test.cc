// SPDX-License-Identifier: MIT
//
// The program as a user starts it: every way to launch ranks gives the same training; what it prints and writes.

#include "tests/train/run/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "verify/dump/safetensors.h"

namespace train::test {
namespace {

const Words kTwo = {"--zero", "1", "--global-batch", "4"};
std::string two_threads() {
  const Outcome outcome = train(kTwo + Words{"--dp", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return told(outcome.out);
}

// Ranks as processes with an environment of their own; what rank 0 told.
std::string two_processes(const Words& environment, const Words& options) {
  Outcome outcomes[2];
  std::thread ranks[2];
  for (int rank = 0; rank < 2; ++rank)
    ranks[rank] = std::thread([&, rank] {
      const Words command = Words{"/usr/bin/env", "RANK=" + std::to_string(rank), "WORLD_SIZE=2"} + environment +
                            Words{LOCKSTEP_TRAIN} + kSmall + kTwo + options;
      outcomes[rank] = run_program(command, kPatience);
    });
  for (std::thread& rank : ranks) rank.join();
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcomes[1].out, "");
  return told(outcomes[0].out);
}

TEST(TrainProgram, TellsALineAStep) {
  const Outcome outcome = train({"--eval-every", "2", "--memory"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"step 1  loss 5.", "  norm ", "  lr 0.001  ", " tokens/s\n", "step 2  held-out loss 5.",
                           "step 3  loss 5.", "memory of rank 0", "  optimizer "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in:\n" << outcome.out;
  EXPECT_EQ(outcome.out.find("step 3  held-out"), std::string::npos);
  EXPECT_EQ(train({"--quiet"}).out, "");
}

TEST(TrainProgram, AnEvaluationChangesNothingAndIsTheSameInEveryLayout) {
  const Words evaluation = {"--eval-every", "1", "--eval-batches", "3", "--dropout", "0.1", "--global-batch", "4"};
  const std::string alone = told(train(evaluation).out);
  EXPECT_NE(alone.find("held-out"), std::string::npos);
  for (const Words& layout :
       {Words{"--accum", "2", "--micro-batch", "2"}, Words{"--fsdp", "full", "--accum", "2"},
        Words{"--dp", "2", "--fsdp", "full", "--accum", "2", "--no-sync"}, Words{"--dp", "4", "--fsdp", "hybrid"},
        Words{"--dp", "2", "--zero", "3"}, Words{"--dp", "2", "--zero", "1"}, Words{"--dp", "2", "--tp", "2"},
        Words{"--dp", "2", "--cp", "2", "--zero", "2"}}) {
    const std::string other = told(train(evaluation + layout).out);
    EXPECT_EQ(other, alone);
  }
  std::string without = told(train({"--dropout", "0.1", "--global-batch", "4"}).out), steps;
  std::istringstream in(alone);
  for (std::string line; std::getline(in, line);)
    if (line.find("held-out") == std::string::npos) steps += line + '\n';
  EXPECT_EQ(steps, without);
}

TEST(TrainProgram, RanksAsProcessesMeetAtAName) {
  const std::string name = "NCCL_COMM_ID=127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
  EXPECT_EQ(two_processes({name}, {}), two_threads());
}

TEST(TrainProgram, RanksAsProcessesMeetInAFile) {
  const TemporaryFolder folder;  // an empty name is none
  EXPECT_EQ(two_processes({"NCCL_COMM_ID="}, {"--id-file", folder.path("id")}), two_threads());
  EXPECT_NE(access(folder.path("id").c_str(), F_OK), 0);  // removed at the end
}

// What a run that was killed has left behind, as process 1 would have written it long before this machine was started.
TEST(TrainProgram, RanksAsProcessesDoNotMeetInAnEarlierRunsFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path("id")) << "lockstep-train id 1\nboot=none pid-space=none\npid=1 started=1\nwritten=1\n\n"
                                   << std::string(128, 'x');
  EXPECT_EQ(two_processes({}, {"--id-file", folder.path("id")}), two_threads());
  const std::string notes = folder.path("notes");
  std::ofstream(notes) << "mine";
  const Outcome refused =
      run_program(Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=2", LOCKSTEP_TRAIN, "--id-file", notes}, kPatience);
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.err, "lockstep-train: " + notes +
                             " is there already and is not a meeting place of lockstep-train: name a new file "
                             "(--id-file)\n");
}

TEST(TrainProgram, UnderMpirun) {
  if (!LOCKSTEP_HAVE_MPI || system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "there is no MPI here";
  const Words mpirun = {"/usr/bin/env",
                        "OMPI_ALLOW_RUN_AS_ROOT=1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "OMPI_MCA_rmaps_base_oversubscribe=1",
                        "OMPI_MCA_mpi_yield_when_idle=1",
                        "mpirun",
                        "-n",
                        "2"};
  const Outcome outcome = run_program(mpirun + Words{LOCKSTEP_TRAIN} + kSmall + kTwo, kPatience);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(told(outcome.out), two_threads());
}

TEST(TrainProgram, ALongTextIsNotReadWhole) {
  const TemporaryFolder folder;
  const std::string text = folder.path("text");
  std::ofstream(text) << "the begin of it\n\n";
  std::filesystem::resize_file(text, uint64_t{100} << 20);
  const Outcome outcome = run_program({LOCKSTEP_TRAIN, "--data", text, "--packed", "--seq", "1024", "--micro-batch",
                                       "1", "--steps", "1", "--layers", "1", "--width", "16"},
                                      kPatience);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(TrainProgram, ALossScaleIsSpokenOfOnlyWhereThereIsOne) {
  const Words diverging = {"--lr", "1e308", "--clip", "0"};
  const std::string without = train(diverging).out, with = train(diverging + Words{"--loss-scale", "1024"}).out;
  EXPECT_NE(without.find("step 2  the gradient's norm is not a number: nothing was updated\n"), std::string::npos)
      << without;
  EXPECT_EQ(without.find("loss scale"), std::string::npos) << without;
  EXPECT_NE(without.find("  norm nan  "), std::string::npos) << without;
  EXPECT_NE(with.find("step 2  gradients overflow: nothing was updated; loss scale is now 512\n"), std::string::npos)
      << with;
}

TEST(TrainProgram, TellsALossScaleThatGrows) {
  const Words growing = {"--loss-scale", "8", "--loss-scale-growth", "2"};
  const std::string out = train(growing).out;
  EXPECT_NE(out.find("step 2  loss scale is now 16\n"), std::string::npos) << out;
  EXPECT_EQ(train(growing + Words{"--quiet"}).out, "");
}

TEST(TrainProgram, TellsFlagsWithoutEffectAndGoesOn) {
  const Outcome outcome = train({"--zero", "2", "--wrap", "layer"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err,
            "lockstep-train: --zero has no effect: it shards over dp x cp ranks, and there is one\n"
            "lockstep-train: --wrap has no effect: it makes units of FSDP: give --fsdp\n");
  EXPECT_EQ(train({}).err, "");
}

// Of one rank top-k would drop all but a few gradients and send nothing.
TEST(TrainProgram, OneRankCompressesNothing) {
  EXPECT_EQ(told(train({"--compress", "topk"}).out), told(train({}).out));
}

TEST(TrainProgram, HelpAndMesh) {
  const Outcome help = run_program({LOCKSTEP_TRAIN, "--help"}, kPatience);
  EXPECT_EQ(help.status, 0);
  for (const char* flag :
       {"--zero", "--fsdp", "--wrap", "--prefetch", "--global-batch", "--dump", "--save-init", "examples:"})
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  const Outcome mesh = run_program({LOCKSTEP_TRAIN, "--print-mesh", "--dp", "2", "--tp", "2"}, kPatience);
  EXPECT_EQ(mesh.status, 0);
  EXPECT_NE(mesh.out.find("4 ranks = dp 2 x pp 1 x cp 1 x tp 2"), std::string::npos) << mesh.out;
  const Outcome experts = run_program(
      {LOCKSTEP_TRAIN, "--print-mesh", "--dp", "2", "--tp", "2", "--sp", "--experts", "8", "--ep", "4"}, kPatience);
  EXPECT_EQ(experts.status, 0) << experts.err;
  EXPECT_NE(experts.out.find("experts: ep 4 x edp 1 in the one stage"), std::string::npos) << experts.out;
  EXPECT_NE(experts.out.find("\nep     [0 1 2 3]\n"), std::string::npos) << experts.out;
}

// As docs/trainer.md shows it.
TEST(TrainProgram, PrintsAScheduleAndEnds) {
  const auto print = [](const Words& options) {
    return run_program(Words{LOCKSTEP_TRAIN, "--print-schedule", "--layers", "4"} + options, kPatience);
  };
  const Outcome one = print({"--pp", "2", "--accum", "3"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out,
            "1f1b: 2 stages, 3 micro-batches, 1 chunk a stage\n"
            "stage 0  F0 F1 .  .  D0--- F2 D1--- .  D2---\n"
            "stage 1  .  F0 D0--- F1 D1--- F2 D2--- .  .\n"
            "makespan 12, of it work 9, bubble 3 a stage; inside a stage's own window 3 0; most in flight 2 1\n");
  const Outcome two = print({"--pp", "2", "--accum", "4", "--schedule", "zero-bubble"});
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_NE(two.out.find("zero-bubble: 2 stages, 4 micro-batches, 1 chunk a stage\n"), std::string::npos) << two.out;
  EXPECT_NE(two.out.find("bubble 1 a stage"), std::string::npos) << two.out;
  const Outcome timed = print({"--pp", "2", "--accum", "2", "--fake-compute-us", "10,12.5,8"});
  EXPECT_NE(timed.out.find("; F 10, B 12.5, W 8, a column 10 us\n"), std::string::npos) << timed.out;
  EXPECT_NE(timed.out.find("makespan 91.5 us, of it work 61, bubble 30.5 a stage"), std::string::npos) << timed.out;
  EXPECT_EQ(print({"--pp", "2", "--accum", "3", "--fake-compute-us", "0,0,0"}).out, one.out);
  const Outcome refused = print({"--pp", "2", "--accum", "3", "--schedule", "interleaved", "--virtual-stages", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.err, "lockstep-train: accum % pp = 3 % 2 is not 0 (interleaved schedule)\n");
}

TEST(TrainProgram, FirstParametersGoToAFileAndComeBack) {
  const TemporaryFolder folder;
  const std::string file = folder.path("init.safetensors");
  ASSERT_EQ(train({"--save-init", file, "--untied", "--vocab-multiple", "96"}).status, 0);
  const auto opened = lockstep::dump::Safetensors::open(file);
  ASSERT_TRUE(opened) << opened.error();
  const auto* head = opened->find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->shape, (std::vector<int64_t>{256, 16}));  // without padding
  ASSERT_NE(opened->find("transformer.h.0.attn.c_attn.weight"), nullptr);

  // The same training from the file as from the seed, also where ranks hold parts; another seed has another one.
  const Words more = {"--untied", "--vocab-multiple", "96", "--global-batch", "4"};
  const std::string from_seed = told(train(more).out);
  EXPECT_EQ(told(train(more + Words{"--init", file}).out), from_seed);
  EXPECT_EQ(told(train(more + Words{"--init", file, "--dp", "2", "--tp", "2", "--fsdp", "full"}).out), from_seed);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const Outcome torn = train({"--init", file, "--untied"});
  EXPECT_EQ(torn.status, 2);
  EXPECT_NE(torn.err.find("is truncated"), std::string::npos) << torn.err;
  EXPECT_NE(torn.err.find(", or, if its writer was killed, make it again with --save-init\n"), std::string::npos)
      << torn.err;
}

}  // namespace
}  // namespace train::test
