// SPDX-License-Identifier: MIT
//
// The text, the sampler and the micro-batches: what a rank reads when.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "reference/train/run/batches.h"
#include "reference/train/run/options.h"
#include "reference/train/run/text.h"

namespace train {
namespace {

struct File {
  std::string path = (std::filesystem::temp_directory_path() / ("train-source-" + std::to_string(getpid()))).string();
  explicit File(const std::string& content) { std::ofstream(path) << content; }
  ~File() { std::filesystem::remove(path); }
};

TEST(TrainText, WindowsAndTheirTargets) {
  const File file("abcdefghijklmnop");  // 16 bytes: windows of 5 begin at 0, 5 and 10
  const Text text(file.path, 5, 256, false);
  EXPECT_EQ(text.samples() + text.held_out(), 3);
  EXPECT_EQ(text.token(1, 0), 'f');
  EXPECT_EQ(text.target(1, 0), 'g');
  EXPECT_EQ(text.target(2, 4), 'p');  // the last byte of all is a target only
  EXPECT_EQ(text.position(1, 3), 3);
  EXPECT_EQ(text.document(1, 3), 0);
}

TEST(TrainText, PackedDocumentsEndAtBlankLines) {
  const File file("ab\n\ncd\n\n\nef\nghijkl");
  const Text text(file.path, 6, 256, true);
  // ab\n\ncd | \n\n\nef\n | ghijkl: documents begin at c and at e
  EXPECT_EQ(text.target(0, 2), '\n');
  EXPECT_EQ(text.target(0, 3), -1);  // the next document is not to be predicted from this one
  EXPECT_EQ(text.document(0, 3), 0);
  EXPECT_EQ(text.document(0, 4), 1);
  EXPECT_EQ(text.position(0, 4), 0);
  EXPECT_EQ(text.position(0, 5), 1);
  EXPECT_EQ(text.document(1, 0), 0);  // counted in each sample from 0
  EXPECT_EQ(text.position(1, 0), 0);  // a document that began before begins again
  EXPECT_EQ(text.document(1, 2), 0);  // further newlines belong to the blank line
  EXPECT_EQ(text.document(1, 3), 1);
  EXPECT_EQ(text.position(1, 4), 1);
  EXPECT_EQ(text.document(2, 0), 0);
}

TEST(TrainText, BadTextsAreRefusedInASentence) {
  const auto refusal = [](const std::string& path, int64_t length, int64_t vocab) -> std::string {
    try {
      const Text text(path, length, vocab, false);
    } catch (const Refusal& refused) {
      return refused.what();
    }
    return "";
  };
  const File file("abcdefgh");
  EXPECT_NE(refusal("/nonexistent/text", 2, 256).find("cannot read the text /nonexistent/text"), std::string::npos);
  EXPECT_NE(refusal("/", 2, 256).find("cannot read"), std::string::npos);
  EXPECT_NE(refusal(file.path, 5, 256).find("has 8 bytes, too few"), std::string::npos);
  EXPECT_NE(refusal(file.path, 2, 100).find("has the byte 104 at 7, and --vocab is 100"), std::string::npos);
}

TEST(TrainText, UnigramEntropyOfFourEqualBytes) {
  const File file("abcdabcdabcd");
  EXPECT_NEAR(Text(file.path, 2, 256, false).unigram_entropy(), std::log(4.0), 1e-12);
}

TEST(TrainSampler, EachSampleOncePerEpochInANewOrder) {
  Sampler sampler(7, 50);
  std::vector<int64_t> first, second;
  for (int64_t g = 0; g < 50; ++g) first.push_back(sampler.sample(g));
  for (int64_t g = 50; g < 100; ++g) second.push_back(sampler.sample(g));
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 50u);
  EXPECT_NE(first, second);
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  EXPECT_EQ(sampler.sample(3), first[3]);  // going back finds the old order again
}

TEST(TrainSampler, StateComesBack) {
  Sampler sampler(7, 50);
  sampler.advance(130);
  Sampler other(0, 1);
  other.restore(sampler.state());
  EXPECT_EQ(other.state(), sampler.state());
  EXPECT_EQ(other.state().next, 130);
  for (int64_t g = 130; g < 160; ++g) EXPECT_EQ(other.sample(g), sampler.sample(g));
}

struct Seen {
  std::vector<int64_t> samples;  // running numbers, in the order of rows
  int64_t targets = 0;
};

// All micro-batches of some steps, as a rank reads them.
Seen read(const Text& text, int dp, int rank, int micro_batches, double mask, int steps) {
  Memory memory(0);
  const Stream stream;
  std::vector<int64_t> places = {0, 1, 2, 3};
  Batches batches(memory, {micro_batches, 2, places, {}, rank, dp, 5, mask});
  Sampler sampler(5, text.samples());
  Seen seen;
  for (int step = 0; step < steps; ++step) {
    batches.load(text, sampler, stream);
    stream.synchronize();
    for (int k = 0; k < micro_batches; ++k)
      for (int64_t i = 0; i < batches[k].rows(); i += 4) seen.samples.push_back(batches[k].samples[i]);
    seen.targets += batches.targets();
    sampler.advance(int64_t{2} * micro_batches * dp);
  }
  return seen;
}

TEST(TrainBatches, RanksAndMicroBatchesDealOutTheSameStream) {
  std::string content;
  for (int i = 0; i < 403; ++i) content += static_cast<char>('a' + i % 26);
  const File file(content);
  const Text text(file.path, 4, 256, false);
  const Seen alone = read(text, 1, 0, 4, 0.5, 3);
  int64_t targets = 0;
  std::vector<int64_t> dealt(alone.samples.size());
  for (int rank = 0; rank < 4; ++rank) {
    const Seen mine = read(text, 4, rank, 1, 0.5, 3);
    targets += mine.targets;
    for (size_t i = 0; i < mine.samples.size(); ++i)
      dealt[i / 2 * 8 + static_cast<size_t>(rank) * 2 + i % 2] = mine.samples[i];
  }
  EXPECT_EQ(dealt, alone.samples);
  EXPECT_EQ(targets, alone.targets);  // masks go by the running number, not by the rank
  EXPECT_GT(targets, 24 * 4 / 4);
  EXPECT_LT(targets, 24 * 4 * 3 / 4);
}

TEST(TrainBatches, MasksMakeRanksUnequal) {
  const File file(std::string(2000, 'x'));
  const Text text(file.path, 4, 256, false);
  std::set<int64_t> counts;
  for (int rank = 0; rank < 4; ++rank) counts.insert(read(text, 4, rank, 2, 0.5, 5).targets);
  EXPECT_GT(counts.size(), 1u);
}

TEST(TrainBatches, HeldOutSamplesAreReadOnceAndNotMasked) {
  const File file(std::string(407, 'x'));
  const Text text(file.path, 4, 256, false);  // 101 windows, of which 5 are held out
  ASSERT_EQ(text.held_out(), 5);
  Memory memory(0);
  const Stream stream;
  int64_t targets = 0;
  for (int rank = 0; rank < 2; ++rank) {
    Batches batches(memory, {2, 2, {0, 1, 2, 3}, {}, rank, 2, 5, 0.5});
    batches.load_held_out(text, 0, stream);
    stream.synchronize();
    targets += batches.targets();
  }
  EXPECT_EQ(targets, 5 * 4);
}

}  // namespace
}  // namespace train
