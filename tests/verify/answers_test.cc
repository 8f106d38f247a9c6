// SPDX-License-Identifier: MIT
//
// The first line of `lockstep compare` is the answer, in each case that people meet. Each is a fault in a copy of a
// sound dump, which is the same as the other one: what is told is the fault.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "tests/demo/process.h"
#include "tests/verify/files.h"
#include "tests/verify/made_dumps.h"

namespace lockstep::test {
namespace {

struct Answer {
  int status = -1;
  std::string first, all;
};

Answer compare(const std::string& a, const std::string& b) {
  const Outcome outcome = run_program({LOCKSTEP_CLI, "compare", a, b}, std::chrono::seconds(50));
  const std::string& text = outcome.status == 2 ? outcome.err : outcome.out;
  return {outcome.status, text.substr(0, text.find('\n')), text};
}

// One rank's part of `param/w` [6, 4] of two; what a case changes.
struct Part {
  MadeTensor tensor = made("w", {6, 4});
  std::string name = "param/w";
  Placement placement;
};
using Change = std::function<void(int rank, Part&)>;

const std::string& write(const TemporaryFolder& folder, MadeDump& dump, int ranks, const Change& change) {
  for (int64_t step = 1; step <= 3; step++) {
    for (int rank = 0; rank < ranks; rank++) {
      Part part;
      const int64_t rows = 6 / ranks;
      part.placement = sliced(part.tensor, {{rank * rows, (rank + 1) * rows}, {0, 4}});
      if (step == 2 && change) change(rank, part);
      const MadeTensor gain = made("g", {5});
      dump.tensor(step, rank, part.name, part.tensor, part.placement);
      dump.tensor(step, rank, "param/gain", gain, whole(gain, Kind::replica));
    }
    dump.metrics_on_all({.step = step, .loss = 5.25});
  }
  return dump.write();
}

class Answers : public testing::Test {
 protected:
  const TemporaryFolder folder;
  const std::string one = [this] {
    MadeDump dump(folder.path("one"), 1);
    return write(folder, dump, 1, {});
  }();
  std::string two(const std::string& name, const Change& change = {}) const {
    MadeDump dump(folder.path(name), 2);
    return write(folder, dump, 2, change);
  }
  Answer changed(const Change& change) const { return compare(one, two("changed", change)); }
};

#define EXPECT_ANSWER(answer, wanted_status, words)                         \
  do {                                                                      \
    const Answer it = answer;                                               \
    EXPECT_EQ(it.status, wanted_status);                                    \
    EXPECT_EQ(it.first.rfind(words, 0), 0u) << "its answer is: " << it.all; \
  } while (false)

TEST_F(Answers, Equal) { EXPECT_ANSWER(compare(one, two("two")), 0, "same: 3 steps, 2 tensors, 1 metric, bitwise"); }

TEST_F(Answers, OneElementOfOneRank) {
  EXPECT_ANSWER(changed([](int rank, Part& part) { part.tensor.values[17] += rank == 1 ? 1e-3 : 0; }), 1,
                "different from step 2: param/w: relative error ");
  const Answer where = compare(one, folder.path("changed"));
  EXPECT_NE(where.all.find("1 of 24 elements, all within [4:5, 1:2]; A: rank 0, B: rank 1"), std::string::npos)
      << where.all;
}

TEST_F(Answers, Gap) {
  EXPECT_ANSWER(
      changed([](int rank, Part& part) {
        if (rank == 1) part.placement.slice[0] = {4, 6};
      }),
      1,
      "different from step 2: param/w: in B by itself, 4 of its 24 elements are on no rank, first element [3, "
      "0]; the others are on ranks 0,1");
}

TEST_F(Answers, Overlap) {
  EXPECT_ANSWER(changed([](int rank, Part& part) {
                  if (rank == 1) part.placement.slice[0] = {2, 6};
                }),
                1,
                "different from step 2: param/w: in B by itself, 4 elements are owned twice, first element [2, 0] by "
                "ranks 0 and 1");
}

TEST_F(Answers, ReplicasThatDiffer) {
  EXPECT_ANSWER(changed([](int rank, Part& part) {
                  part.placement = whole(part.tensor, Kind::replica);
                  part.tensor.values[0] += rank == 1 ? 1e-15 : 0;
                }),
                1, "different from step 2: param/w: in B by itself, its copies differ: ");
}

TEST_F(Answers, MissingStepAndRank) {
  std::filesystem::remove_all(two("step") + "/step000002");
  EXPECT_ANSWER(compare(one, folder.path("step")), 3, "incomplete: only A has tensors of step 2; what was compared");
  std::filesystem::remove(two("rank") + "/step000002/rank00001.safetensors");
  EXPECT_ANSWER(compare(one, folder.path("rank")), 3,
                "incomplete: step 2: B lacks files of rank 1: param was not compared; what was compared is the same");
}

// Lines of metrics, without those of some ranks.
TEST_F(Answers, RanksThatDoNotSpeak) {
  const auto three = [&](const std::string& name, const std::function<bool(int64_t step, int rank)>& speaks) {
    MadeDump dump(folder.path(name), 3);
    for (int64_t step = 1; step <= 2; step++) {
      dump.on_all(step, "param/gain", made("g", {5}));
      for (int rank = 0; rank < 3; rank++)
        if (speaks(step, rank)) dump.metrics({.step = step, .rank = rank, .loss = 5.25});
    }
    return dump.write();
  };
  const std::string all = three("all", [](int64_t, int) { return true; });
  EXPECT_ANSWER(compare(all, three("never", [](int64_t, int rank) { return rank != 1; })), 3,
                "incomplete: steps 1-2: B has no line in metrics.jsonl of rank 1; what was compared is the same");
  EXPECT_ANSWER(compare(three("once", [](int64_t step, int rank) { return step == 1 || rank == 0; }), all), 3,
                "incomplete: step 2: A has no line in metrics.jsonl of ranks 1,2; what was compared is the same");
  const Answer one_speaks = compare(all, three("lonely", [](int64_t, int rank) { return rank == 0; }));
  EXPECT_ANSWER(one_speaks, 0, "same: ");
  EXPECT_NE(one_speaks.all.find("in B the metrics are those of rank 0 alone, of 3 ranks: whether the others agree is "
                                "not known"),
            std::string::npos)
      << one_speaks.all;
  const Outcome tensors =
      run_program({LOCKSTEP_CLI, "compare", all, folder.path("never"), "--only", "param/*"}, std::chrono::seconds(50));
  EXPECT_EQ(tensors.status, 0) << tensors.out;
  const Outcome loss =
      run_program({LOCKSTEP_CLI, "compare", all, folder.path("never"), "--only", "loss"}, std::chrono::seconds(50));
  EXPECT_EQ(loss.status, 3) << loss.out;
}

TEST_F(Answers, NotANumber) {
  const Change nan = [](int rank, Part& part) { part.tensor.values[17] = rank == 1 ? std::nan("") : 0; };
  EXPECT_ANSWER(changed(nan), 1, "different from step 2: param/w: NaNs: 0 in A, 1 in B");
  EXPECT_ANSWER(compare(folder.path("changed"), two("again", nan)), 1,
                "different from step 2: param/w: NaNs: 1 in A, 1 in B");
}

TEST_F(Answers, OtherWorldSizes) {
  EXPECT_ANSWER(compare(two("two"), one), 0, "same: ");
  MadeDump six(folder.path("six"), 6);
  EXPECT_ANSWER(compare(one, write(folder, six, 6, {})), 0, "same: ");
  std::filesystem::copy_file(folder.path("six/step000002/rank00004.safetensors"),
                             folder.path("two/step000002/rank00004.safetensors"));
  EXPECT_ANSWER(compare(one, folder.path("two")), 2, "lockstep compare: " + folder.path("two/step000002/rank00004"));
}

TEST_F(Answers, OtherTypes) {
  const Change narrow = [](int, Part& part) { part.tensor.dtype = Dtype::f32; };
  EXPECT_ANSWER(changed(narrow), 0, "same: ");
  EXPECT_NE(compare(one, folder.path("changed")).all.find("1 tensor is F64 in A and F32 in B"), std::string::npos);
  EXPECT_ANSWER(changed([](int rank, Part& part) { part.tensor.dtype = rank ? Dtype::f32 : Dtype::f64; }), 1,
                "different from step 2: param/w: in B by itself, its dtype is rank 0 F64, rank 1 F32");
  EXPECT_ANSWER(changed([](int, Part& part) { part.tensor.dtype = Dtype::i32; }), 1,
                "different from step 2: param/w: its dtype is F64 in A, I32 in B");
}

TEST_F(Answers, OtherNames) {
  EXPECT_ANSWER(changed([](int, Part& part) { part.name = "param/v"; }), 1,
                "different from step 2: param/v: only B has it");
  EXPECT_NE(compare(one, folder.path("changed")).all.find("only A has param/w, of the same shape"), std::string::npos);
}

TEST_F(Answers, AFolderAndItself) {
  const Answer answer = compare(one, one + "/.");
  EXPECT_ANSWER(answer, 0, "same: ");
  EXPECT_NE(answer.all.find("A and B are the same folder"), std::string::npos) << answer.all;
}

// Adam's steps along a gradient that is rounding and nothing else, and along one that is not.
TEST_F(Answers, AGradientThatIsZeroButForRounding) {
  const auto bias = [&](const std::string& name, double gradient, double change) {
    MadeDump dump(folder.path(name), 1);
    MadeTensor parameter = made("b", {12}), grad = made("g", {12});
    for (size_t i = 4; i < 8; i++) {
      grad.values[i] = gradient;
      parameter.values[i] = 1e-9 + change;
    }
    return dump.on_all(1, "param/b", parameter).on_all(1, "grad/b", grad).write();
  };
  const std::string words = "the gradient of the elements that differ is zero but for rounding";
  const std::string a = bias("a", 3e-17, 0), b = bias("b", 3e-17, 1e-3), c = bias("c", 0.1, 0),
                    d = bias("d", 0.1, 1e-3);
  const Answer noise = compare(a, b), real = compare(c, d);
  EXPECT_ANSWER(noise, 1, "different from step 1: param/b: relative error ");
  EXPECT_NE(noise.all.find(words), std::string::npos) << noise.all;
  EXPECT_ANSWER(real, 1, "different from step 1: param/b: relative error ");
  EXPECT_EQ(real.all.find(words), std::string::npos) << real.all;
}

TEST_F(Answers, ParametersBeforeTheFirstStep) {
  const auto first = [&](const std::string& name, const std::string& values) {
    MadeDump dump(folder.path(name), 1);
    return dump.on_all(0, "param/w", {{3, 4}, made_values(values, 12)}).write();
  };
  const Answer answer = compare(first("first", "x"), first("other", "y"));
  EXPECT_ANSWER(answer, 1, "different from step 0: param/w: ");
  EXPECT_NE(answer.all.find("the parameters before the first step: look at the seed"), std::string::npos) << answer.all;
}

// What a name says to a terminal is shown, not obeyed: not in the answer, not in tables, not in errors.
TEST_F(Answers, NamesGiveNoOrders) {
  const std::string name = "param/\x1b[2J\n\xc2\x9b\xe2\x80\xae";
  const Answer answer = changed([&](int, Part& part) { part.name = name; });
  EXPECT_EQ(answer.all.find('\x1b'), std::string::npos) << answer.all;
  EXPECT_EQ(answer.all.find("\xc2\x9b"), std::string::npos) << answer.all;
  EXPECT_NE(answer.first.find("param/\\x1b[2J\\n\\u009b\\u202e: only B has it"), std::string::npos) << answer.first;
  const std::string file = folder.path("changed/step000002/rank00000.safetensors");
  const Outcome shown = run_program({LOCKSTEP_CLI, "show", file}, std::chrono::seconds(50));
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_EQ(shown.out.find('\x1b'), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("param/\\x1b[2J\\n\\u009b\\u202e"), std::string::npos) << shown.out;
  write_text(file, raw_safetensors("{\"\\u001b[1m\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", 0));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{LOCKSTEP_CLI, "show", file}, {LOCKSTEP_CLI, "compare", one, folder.path("changed")}}) {
    const Outcome refused = run_program(words, std::chrono::seconds(50));
    EXPECT_EQ(refused.status, 2);
    EXPECT_EQ(refused.err.find('\x1b'), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("\\x1b[1m"), std::string::npos) << refused.err;
  }
}

TEST_F(Answers, AFileThatWasCutOff) {
  const std::string file = two("cut") + "/step000002/rank00001.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{LOCKSTEP_CLI, "show", file}, {LOCKSTEP_CLI, "compare", one, folder.path("cut")}}) {
    const Outcome refused = run_program(words, std::chrono::seconds(50));
    EXPECT_EQ(refused.status, 2);
    const std::string at = file + ": byte " + std::to_string(std::filesystem::file_size(file));
    EXPECT_NE(refused.err.find(at + ": the safetensors file is truncated, it ends in tensor "), std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find("copy it again"), std::string::npos) << refused.err;
  }
}

}  // namespace
}  // namespace lockstep::test
