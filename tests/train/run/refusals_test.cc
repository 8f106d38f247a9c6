// SPDX-License-Identifier: MIT
//
// What the program refuses: one sentence on standard error and status 2.

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/train/run/program.h"
#include "verify/dump/safetensors.h"

namespace train::test {
namespace {

TEST(TrainProgram, RefusesANameThatIsNoMeetingPlace) {
  for (const char* name :
       {"x", "host:", ":29500", "host:0", "host:65536", "host:1x", "a b:1", "fe80::1:29500", "[]:1"}) {
    const Outcome refused = run_program(
        Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=2", std::string("NCCL_COMM_ID=") + name, LOCKSTEP_TRAIN},
        kPatience);
    EXPECT_EQ(refused.status, 2) << name;
    EXPECT_EQ(refused.err, std::string("lockstep-train: NCCL_COMM_ID is \"") + name +
                               "\", but must be host:port of rank 0's machine, such as 10.0.0.1:29500 or "
                               "[fe80::1]:29500: set it so on all ranks, or unset it and give --id-file\n");
  }
  // Where NCCL itself does not take what has the form.
  const Outcome longer = run_program(
      Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=2", "NCCL_COMM_ID=" + std::string(300, 'x') + ":1", LOCKSTEP_TRAIN},
      kPatience);
  EXPECT_EQ(longer.status, 2);
  EXPECT_NE(longer.err.find("xxx:1\", but must be host:port of rank 0's machine"), std::string::npos) << longer.err;
  const Outcome none =
      run_program(Words{"/usr/bin/env", "RANK=0", "WORLD_SIZE=2", "NCCL_COMM_ID=", LOCKSTEP_TRAIN}, kPatience);
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("but not where they meet"), std::string::npos) << none.err;
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

// Samples that are not there would be masked, and the loss would be of fewer batches than was asked for.
TEST(TrainProgram, RefusesMoreEvaluationThanIsHeldOut) {
  const TemporaryFolder folder;
  const std::string text = folder.path("text");
  std::ofstream(text) << std::string(100 * 16 + 1, 'a');  // 100 samples, of which 5 are held out
  const Words words = {"--data", text, "--micro-batch", "2", "--eval-every", "3"};
  expect_refusal(words + Words{"--eval-batches", "4"},
                 "eval-batches x global batch = 4 x 2 = 8 samples, but of the text 5 are held out (a twentieth): "
                 "--eval-batches can be at most 3; or take a longer text");
  const std::string all = told(train(words + Words{"--eval-batches", "3"}).out);
  EXPECT_NE(all.find("held-out"), std::string::npos);
  EXPECT_EQ(told(train(words).out), all);  // of the usual four those that are there
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

TEST(TrainProgram, RefusesFirstParametersOfOtherShapes) {
  const TemporaryFolder folder;
  const std::string file = folder.path("init.safetensors");
  ASSERT_EQ(train({"--save-init", file, "--untied"}).status, 0);
  const Outcome refused = train({"--init", file, "--untied", "--vocab", "300"});
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_NE(refused.err.find("has shape [256, 16], but the model's is [300, 16]"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace train::test
