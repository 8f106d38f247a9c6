// SPDX-License-Identifier: MIT

#include <cmath>

#include "reference/train/kernels/philox.h"
#include "tests/train/kernels/harness.h"

namespace train::test {
namespace {

using Random = KernelTest;
LOCKSTEP_ALL_TYPES(Random);

// The known answers that come with Random123.
TEST(Philox, GivesTheKnownAnswers) {
  const uint32_t all = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({all, all, all, all}, {all, all}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CounterSaysWhatANumberIsFor) {
  const RandomStream random{0x123456789abcdef0, RandomUse::mlp_dropout, 5};
  const int64_t sample = (int64_t{0xabc} << 32) + 77;
  EXPECT_EQ(random_words(random, sample, 9, 3),
            philox({3, 9, 77, static_cast<uint32_t>(RandomUse::mlp_dropout) << 24 | 5U << 12 | 0xabcU},
                   {0x9abcdef0, 0x12345678}));
  uint32_t room[40 + kRandomSlack];
  for (const int64_t first : {0, 1, 6, 1027})
    for (const int64_t count : {0, 1, 3, 40}) {
      const uint32_t* row = random_row(room, random, sample, 9, first, count);
      for (int64_t i = 0; i < count; ++i)
        EXPECT_EQ(row[i], random_words(random, sample, 9, (first + i) / 4)[static_cast<size_t>((first + i) % 4)]);
    }
}

TEST(Philox, ThresholdIsTheComparisonOfUniformNumbers) {
  for (const double p : {1e-9, 0.1, 0.25, 0.5, 0.3333, 1 - 0x1p-24})
    for (const int64_t off : {-2, -1, 0, 1, 2}) {
      const int64_t top = std::min<int64_t>(std::max<int64_t>(threshold_of(p) + off, 0), 0xffffff);
      const auto word = static_cast<uint32_t>(top << 8 | 0x7f);
      EXPECT_EQ(word >> 8 >= threshold_of(p), uniform_of(word) >= p);
    }
}

TEST_P(Random, DropoutIsTheSameHoweverRowsAndColumnsAreSplit) {
  const int64_t rows = 70, columns = 301;
  const Values x = normal(rows * columns);
  std::vector<int64_t> samples;
  std::vector<int32_t> order;
  for (int64_t r = 0; r < rows; ++r)
    samples.push_back(r / 35 + (int64_t{3} << 33)), order.push_back(static_cast<int32_t>(r % 35));
  const RandomStream random{42, RandomUse::embedding_dropout, 0};
  const double p = 0.3;
  const Values whole = run_one([&] {
    const View out = room(rows * columns);
    dropout(stream(), out, put(x), random, p, put_indices(samples), put_indices(order), rows, columns, 0);
    return out;
  });
  int64_t dropped = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const auto i = static_cast<size_t>(r * columns + c);
      const uint32_t word = random_words(random, samples[static_cast<size_t>(r)], order[static_cast<size_t>(r)],
                                         c / 4)[static_cast<size_t>(c % 4)];
      const bool kept = uniform_of(word) >= p;
      dropped += kept ? 0 : 1;
      ASSERT_NEAR(whole[i], kept ? x[i] / (1 - p) : 0, 3 * roundoff(type()) * std::abs(x[i]));
    }
  EXPECT_NEAR(static_cast<double>(dropped) / static_cast<double>(rows * columns), p, 0.02);
  for (const int64_t cut : {1, 6, 150, 300})
    for (const int64_t row : {0, 13}) {  // a part: rows from `row`, columns from `cut`
      Values part, wanted;
      for (int64_t r = row; r < rows; ++r)
        for (int64_t c = cut; c < columns; ++c) {
          part.push_back(x[static_cast<size_t>(r * columns + c)]);
          wanted.push_back(whole[static_cast<size_t>(r * columns + c)]);
        }
      const Values got = run_one([&] {
        const View inout = put(part);
        dropout(stream(), inout, inout, random, p, put_indices(samples) + row, put_indices(order) + row, rows - row,
                columns - cut, cut);
        return inout;
      });
      EXPECT_EQ(got, wanted);
    }
  EXPECT_EQ(run_one([&] {
              const View out = room(rows * columns);
              dropout(stream(), out, put(x), random, 0, put_indices(samples), put_indices(order), rows, columns, 0);
              return out;
            }),
            x);
}

TEST_P(Random, NormalNumbersAreTheSameHoweverAParameterIsSplit) {
  const int64_t rows = 150, columns = 90;
  const RandomStream random{9, RandomUse::init, 0};
  const auto part = [&](int64_t row, int64_t end_row, int64_t column, int64_t end_column) {
    return run_one([&] {
      const View out = room((end_row - row) * (end_column - column));
      fill_normal(stream(), out, random, 17, 0.02, end_row - row, end_column - column, row, column);
      return out;
    });
  };
  const Values whole = part(0, rows, 0, columns);
  double sum = 0, squares = 0, fourth = 0;
  for (const double value : whole) sum += value, squares += value * value, fourth += std::pow(value / 0.02, 4);
  const auto n = static_cast<double>(whole.size());
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 4 / std::sqrt(2 * n));
  EXPECT_NEAR(fourth / n, 3, 4 * std::sqrt(96 / n));  // what a normal distribution has
  const Values corner = part(31, 40, 7, 90);
  for (int64_t r = 31; r < 40; ++r)
    for (int64_t c = 7; c < 90; ++c)
      EXPECT_EQ(corner[static_cast<size_t>((r - 31) * 83 + c - 7)], whole[static_cast<size_t>(r * columns + c)]);
  EXPECT_NE(part(0, 1, 0, 8), part(1, 2, 0, 8));
}

}  // namespace
}  // namespace train::test
