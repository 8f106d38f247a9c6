// SPDX-License-Identifier: MIT
//
// The shards: all but the short rank's give the same number of batches, none reaches into its neighbour, and every
// sample is the text at its place.

#include <gtest/gtest.h>

#include <random>

#include "reference/demo/data_loader.h"

namespace demo {
namespace {

std::string random_text(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 26);
  return text;
}

int count_batches(DataLoader loader) {
  Batch batch;
  int n = 0;
  while (next_batch(loader, batch)) ++n;
  return n;
}

TEST(DemoShards, OnlyTheShortRankHasOneBatchLess) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Options options;
    options.ranks = 2 + static_cast<int>(random() % 7);
    options.batch = 1 + static_cast<int>(random() % 40);
    options.short_rank = static_cast<int>(random() % static_cast<unsigned>(options.ranks));
    const std::string text = random_text(3000 + random() % 3000);
    options.steps = steps_that_fit(text.size(), options.ranks, options.batch);
    ASSERT_GE(options.steps, 2);
    const Vocabulary vocabulary = make_vocabulary(text);
    for (int rank = 0; rank < options.ranks; ++rank) {
      options.drop_last = false;
      EXPECT_EQ(count_batches(open_shard(text, vocabulary, options, rank)),
                options.steps - (rank == options.short_rank));
      options.drop_last = true;
      EXPECT_EQ(count_batches(open_shard(text, vocabulary, options, rank)), options.steps - 1);
    }
  }
}

TEST(DemoShards, SamplesAreTheTextInOrder) {
  Options options;
  options.ranks = 3;
  options.batch = 5;
  options.steps = 4;
  options.short_rank = 1;
  const std::string text = random_text(200);
  const Vocabulary vocabulary = make_vocabulary(text);
  size_t end_of_last_shard = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    DataLoader loader = open_shard(text, vocabulary, options, rank);
    Batch batch;
    for (int n = 0; next_batch(loader, batch); ++n) {
      EXPECT_EQ(batch.id, "shard" + std::to_string(rank) + ":" + std::to_string(n * 5));
      ASSERT_EQ(batch.target.size(), 5U);
      ASSERT_EQ(batch.context.size(), 5U * kContext);
      for (size_t i = 0; i < 5; ++i) {
        const size_t at = static_cast<size_t>(n * 5) + i;
        EXPECT_EQ(batch.target[i], loader.text[at + kContext]);
        for (size_t c = 0; c < kContext; ++c) EXPECT_EQ(batch.context[i * kContext + c], loader.text[at + c]);
      }
    }
    ASSERT_EQ(vocabulary.size, 26);  // all letters occur, so numbers are letters
    std::string shard;
    for (int id : loader.text) shard += static_cast<char>('a' + id);
    const size_t begin = text.find(shard);
    ASSERT_NE(begin, std::string::npos);
    EXPECT_GE(begin, end_of_last_shard);
    end_of_last_shard = begin + shard.size();
  }
}

}  // namespace
}  // namespace demo
