// SPDX-License-Identifier: MIT
//
// Compression of gradients against a few lines that say what it should do: what travels, what is held back and comes
// with a later step, and that all ranks have the same bits.

#include "reference/train/parallel/compress.h"

#include <algorithm>
#include <cmath>

#include "reference/train/kernels/kernels.h"
#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int kRanks = 4, kSteps = 7;
constexpr int64_t kCount = 13;

[[maybe_unused]] const bool kDevices = [] {
  set_devices(kRanks);
  return true;
}();

// No two of the same size, in a bucket of a rank.
double gradient(int bucket, int rank, int step, int64_t i) {
  return std::sin(1.3 * static_cast<double>(i) + 0.7 * rank + 2.1 * step + bucket) *
         (1 + 0.01 * static_cast<double>(i));
}

// e += g; s = the k largest of e; e -= s; the sum of s over the ranks, in their order.
struct Expected {
  std::vector<std::vector<double>> rest{kRanks, std::vector<double>(kCount)};

  std::vector<double> step(int bucket, int number, size_t k) {
    std::vector<double> sum(kCount);
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<double>& e = rest[static_cast<size_t>(rank)];
      std::vector<size_t> order;
      for (size_t i = 0; i < e.size(); ++i) {
        e[i] += gradient(bucket, rank, number, static_cast<int64_t>(i));
        order.push_back(i);
      }
      std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return std::fabs(e[a]) > std::fabs(e[b]); });
      for (size_t n = 0; n < k; ++n) {
        sum[order[n]] += e[order[n]];
        e[order[n]] = 0;
      }
    }
    return sum;
  }
};

TEST(Compress, TopkHoldsBackTheRestForLaterSteps) {
  for (const auto& [fraction, k] :
       {std::pair(0.25, size_t{3}), std::pair(0.001, size_t{1}), std::pair(1.0, size_t{13})}) {
    SCOPED_TRACE(fraction);
    Expected expected[2];  // buckets, each with a rest of its own
    std::vector<std::vector<double>> sums;
    for (int step = 0; step < kSteps; ++step)
      for (int bucket = 0; bucket < 2; ++bucket) sums.push_back(expected[bucket].step(bucket, step, k));
    run_as_ranks(kRanks, [&, part = fraction](Comm group) {
      Memory memory(group.rank());
      const Stream stream;
      const auto compressor = make_topk(memory, part);
      for (int step = 0; step < kSteps; ++step)
        for (int bucket = 0; bucket < 2; ++bucket) {
          std::vector<double> mine;
          for (int64_t i = 0; i < kCount; ++i) mine.push_back(gradient(bucket, group.rank(), step, i));
          const View view = device_view(memory, mine);
          compressor->all_reduce(bucket, view, group, stream);
          EXPECT_EQ(numbers(stream, view), sums[static_cast<size_t>(2 * step + bucket)])
              << "step " << step << " bucket " << bucket << " rank " << group.rank();
        }
    });
  }
}

TEST(Compress, Bf16RoundsOnTheWay) {
  run_as_ranks(2, [&](Comm group) {
    Memory memory(group.rank());
    const Stream stream;
    const auto compressor = make_bf16(memory);
    const double below = 1 + std::ldexp(1, -9), above = 1 + std::ldexp(3, -9);  // bf16 knows 1 and 1 + 2^-7
    for (int step = 0; step < 2; ++step) {                                      // nothing of the first is in the second
      const View wide = device_view(memory, {3, below, above, group.rank() == 0 ? 1e38 : -1e38, 1. / 3});
      const View narrow = memory.allocate(Purpose::gradients, Dtype::f32, wide.size);
      convert(stream.get(), narrow, wide);
      compressor->all_reduce(0, narrow, group, stream);
      convert(stream.get(), wide, narrow);
      EXPECT_EQ(numbers(stream, wide), (std::vector<double>{6, 2, 2 + std::ldexp(1, -6), 0, 2 * 0.333984375}));
    }
  });
}

}  // namespace
}  // namespace train
