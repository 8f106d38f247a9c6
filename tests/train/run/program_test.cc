// SPDX-License-Identifier: MIT
//
// The program as a user starts it: every way to launch ranks gives the same training; what it prints, writes and
// refuses.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/demo/process.h"
#include "verify/dump/safetensors.h"

namespace train::test {
namespace {

using lockstep::test::Outcome;
using lockstep::test::run_program;
using lockstep::test::TemporaryFolder;
using Words = std::vector<std::string>;
constexpr std::chrono::seconds kPatience(100);

const Words kSmall = {"--layers", "1",  "--heads", "2", "--width", "16",
                      "--seq",    "16", "--steps", "3", "--dtype", "fp64"};

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Outcome train(const Words& options) { return run_program(Words{LOCKSTEP_TRAIN} + kSmall + options, kPatience); }

// The losses and norms of all steps, without what depends on time.
std::string told(const std::string& out) {
  std::istringstream in(out);
  std::string all;
  for (std::string line; std::getline(in, line);)
    if (line.rfind("step", 0) == 0) all += line.substr(0, line.find("  lr")) + '\n';
  return all;
}

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
  const TemporaryFolder folder;
  EXPECT_EQ(two_processes({}, {"--id-file", folder.path("id")}), two_threads());
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

TEST(TrainProgram, RefusesWithASentenceAndStatus2) {
  const struct {
    Words options;
    const char* says;
  } cases[] = {{{"--ranks", "3", "--dp", "2"}, "there are 3 ranks"},
               {{"--nonsense"}, "see --help"},
               {{"--data", "/nonexistent"}, "cannot read the text /nonexistent"},
               {{"--init", "/nonexistent"}, "/nonexistent"},
               {{"--vocab", "100"}, "and --vocab is 100"}};
  for (const auto& c : cases) {
    const Outcome outcome = train(c.options);
    EXPECT_EQ(outcome.status, 2) << c.says;
    EXPECT_EQ(outcome.err.rfind("lockstep-train: ", 0), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find(c.says), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  const Outcome lonely = run_program(Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=2", LOCKSTEP_TRAIN}, kPatience);
  EXPECT_EQ(lonely.status, 2);
  EXPECT_NE(lonely.err.find("set NCCL_COMM_ID=host:port, or give --id-file FILE"), std::string::npos) << lonely.err;
}

// With status 2 and this sentence alone.
void expect_refusal(const Words& options, const std::string& says) {
  const Outcome outcome = train(options);
  EXPECT_EQ(outcome.status, 2) << says;
  EXPECT_EQ(outcome.err, "lockstep-train: " + says + "\n");
}

TEST(TrainProgram, RefusesPathsThatAreNotFiles) {
  for (const char* flag : {"--init", "--data", "--save-init", "--id-file"})
    expect_refusal({flag, ""}, std::string(flag) + " names no file");
  expect_refusal({"--dump", ""}, "--dump names no folder");
  const TemporaryFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero"), folder.path("")}) {
    expect_refusal({"--data", path}, "cannot read the text " + path + ": it is not a regular file");
    expect_refusal({"--init", path}, path + " is not a regular file (--init)");
    expect_refusal({"--save-init", path}, path + " is there already and is not a regular file (--save-init)");
  }
  expect_refusal({"--data", "/proc/self/mem"}, "cannot read the text /proc/self/mem: Input/output error");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  const std::string nowhere = folder.path("nowhere"), link = folder.path("link"), file = folder.path("file");
  std::filesystem::create_symlink("missing", nowhere);
  expect_refusal({"--save-init", nowhere}, nowhere + " is there already and is not a regular file (--save-init)");
  std::ofstream(file) << "old";
  std::filesystem::create_symlink("file", link);
  EXPECT_EQ(train({"--save-init", link}).status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(lockstep::dump::Safetensors::open(file));
}

TEST(TrainProgram, EachRankTellsWhatItMeets) {
  const auto started = [](const char* rank, const Words& options) {
    return run_program(Words{"/usr/bin/env", std::string("RANK=") + rank, "WORLD_SIZE=2", LOCKSTEP_TRAIN} + kSmall +
                           Words{"--id-file", "nowhere/id"} + options,
                       kPatience);
  };
  const Outcome file = started("1", {"--data", "no such text"});
  EXPECT_EQ(file.status, 2);
  EXPECT_EQ(file.err.rfind("lockstep-train: rank 1: cannot read the text no such text", 0), 0u) << file.err;
  const Outcome options = started("1", {"--tp", "3"});  // the same on all ranks
  EXPECT_EQ(options.status, 2);
  EXPECT_EQ(options.err, "");
  EXPECT_NE(started("0", {"--tp", "3"}).err, "");
}

TEST(TrainProgram, AFullOutputIsAnError) {
  const Outcome outcome = run_program({"sh", "-c", LOCKSTEP_TRAIN " --print-mesh > /dev/full"}, kPatience);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("standard output could not be written"), std::string::npos) << outcome.err;
}

TEST(TrainProgram, RefusesATextThatIsTooLong) {
  const TemporaryFolder folder;
  const std::string text = folder.path("text");
  std::ofstream(text) << "short";
  std::filesystem::resize_file(text, uint64_t{5} << 30);
  expect_refusal({"--data", text}, "cannot read the text " + text + ": it has 2 GiB or more");
}

TEST(TrainProgram, RefusesFirstParametersOfALargerModel) {
  const TemporaryFolder folder;
  const std::string file = folder.path("init.safetensors"), has = file + " has a tensor ";
  const std::string not_ours = " that the model does not have (--init)";
  const auto save = [&](const Words& more) {
    EXPECT_EQ(run_program(Words{LOCKSTEP_TRAIN, "--heads", "2", "--width", "16", "--seq", "16", "--dtype", "fp64",
                                "--save-init", file} +
                              more,
                          kPatience)
                  .status,
              0);
  };
  save({"--layers", "2"});
  expect_refusal({"--init", file, "--dp", "2"}, has + "transformer.h.1.ln_1.weight" + not_ours);
  save({"--layers", "1", "--untied"});
  expect_refusal({"--init", file}, has + "lm_head.weight" + not_ours);
  save({"--layers", "1"});
  expect_refusal({"--init", file, "--pos", "rotary"}, has + "transformer.wpe.weight" + not_ours);
}

TEST(TrainProgram, RefusesAFolderThatHoldsADump) {
  const TemporaryFolder folder;
  const std::string dump = folder.path("dump");
  ASSERT_EQ(train({"--dump", dump, "--dp", "2"}).status, 0);
  const std::string says = dump + " already holds a dump; name a new folder or remove it (--dump)";
  expect_refusal({"--dump", dump, "--dp", "2"}, says);
  std::filesystem::remove(dump + "/metrics.jsonl");
  expect_refusal({"--dump", dump}, says);

  const std::string file = folder.path("file"), inside = file + "/dump", empty = folder.path("empty");
  std::ofstream(file) << "x";
  expect_refusal({"--dump", inside}, inside + ": no dump can be written there: Not a directory (--dump)");
  std::filesystem::create_directory(empty);
  EXPECT_EQ(train({"--dump", empty}).status, 0);
}

TEST(TrainProgram, ALossScaleIsSpokenOfOnlyWhereThereIsOne) {
  const Words diverging = {"--lr", "1e308", "--clip", "0"};
  const std::string without = train(diverging).out, with = train(diverging + Words{"--loss-scale", "1024"}).out;
  EXPECT_NE(without.find("step 2  the gradient's norm is not a number: nothing was updated\n"), std::string::npos)
      << without;
  EXPECT_EQ(without.find("loss scale"), std::string::npos) << without;
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

TEST(TrainProgram, RefusesWhatNoMachineHas) {
  const struct {
    Words options;
    const char *begins, *says;
  } cases[] = {
      {{"--layers", "1048576", "--width", "16384"}, "layers = 1048576 of width = 16384 are 3.38e+15 parameters", "GiB"},
      {{"--dp", "4", "--fsdp", "full", "--width", "1048576"},
       "layers = 1 of width = 1048576 are 1.32e+13",
       "ranks = 4"},
      {{"--experts", "1048576", "--width", "4096"}, "layers = 1 of width = 4096 with experts = 1048576 are ", "GiB"},
      {{"--seq", "1048576", "--micro-batch", "65536"}, "micro-batch = 65536 of seq = 1048576 has activations", "GiB"},
      {{"--accum", "1073741824", "--micro-batch", "1"},
       "micro-batch = 1 of seq = 16 and accum = 1073741824 are",
       "GiB"},
      {{"--save-init", "/nonexistent/file", "--layers", "1048576", "--width", "16384", "--tp", "2"},
       "layers = 1048576 of width = 16384 are 3.38e+15 parameters",
       "ranks = 1 "},
  };
  for (const auto& c : cases) {
    Words options = kSmall;
    for (size_t i = 0; i < c.options.size(); i += 2) {  // instead of those of kSmall
      const auto known = std::find(options.begin(), options.end(), c.options[i]);
      if (known != options.end()) options.erase(known, known + 2);
    }
    const Outcome outcome = run_program(Words{LOCKSTEP_TRAIN} + options + c.options, kPatience);
    EXPECT_EQ(outcome.status, 2) << c.begins;
    EXPECT_EQ(outcome.err.rfind(std::string("lockstep-train: ") + c.begins, 0), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find(c.says), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(": take smaller sizes\n"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  // Of a launcher's processes all that are on this machine.
  const Outcome local = run_program(Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4",
                                          "NCCL_COMM_ID=127.0.0.1:1", LOCKSTEP_TRAIN} +
                                        Words{"--layers", "1048576", "--width", "16384"},
                                    kPatience);
  EXPECT_EQ(local.status, 2);
  EXPECT_NE(local.err.find(" are needed for ranks = 4 on this machine"), std::string::npos) << local.err;
  expect_refusal({"--freeze", "h.9.*"},
                 "--freeze h.9.* matches no parameter, such as transformer.wte.weight: take a name or a shell pattern "
                 "of names");
  expect_refusal({"--freeze", "*"}, "--freeze leaves no parameter to train: leave out a pattern");
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
  EXPECT_NE(experts.out.find("experts: ep 4 x edp 1 in each of 1 stages"), std::string::npos) << experts.out;
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
  const Outcome refused = train({"--init", file, "--untied", "--vocab", "300"});
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_NE(refused.err.find("has shape [256, 16], but the model's is [300, 16]"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace train::test
