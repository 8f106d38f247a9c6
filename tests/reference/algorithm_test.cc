// SPDX-License-Identifier: MIT
//
// NCCL_ALGO and LOCKSTEP_HOST_ORDER: the order of summation each stands for, by the bits of the result, computed here
// once more in the plainest way; and choices that are impossible.

#include <cstring>
#include <random>
#include <string>

#include "tests/reference/ranks.h"

namespace lockstep::test {
namespace {

constexpr int kRanks = 5;

using Vectors = std::vector<std::vector<float>>;

// Numbers of very different size: every order of summation gives other bits.
Vectors inputs_of(size_t count) {
  std::mt19937 random(7);
  Vectors inputs(kRanks, std::vector<float>(count));
  for (auto& input : inputs)
    for (float& x : input)
      x = std::ldexp(static_cast<float>(random() % 2000001) - 1e6f, static_cast<int>(random() % 25));
  return inputs;
}

float chain(const Vectors& in, size_t i, int first) {
  float sum = in[static_cast<size_t>(first % kRanks)][i];
  for (int k = 1; k < kRanks; ++k) sum = sum + in[static_cast<size_t>((first + k) % kRanks)][i];
  return sum;
}
float tree(const Vectors& in, size_t i, int lo, int hi, bool mirrored) {
  const int mid = (lo + hi + 1) / 2;
  float sum = in[static_cast<size_t>(mirrored ? kRanks - 1 - mid : mid)][i];
  if (lo < mid) sum = sum + tree(in, i, lo, mid - 1, mirrored);
  if (mid < hi) sum = sum + tree(in, i, mid + 1, hi, mirrored);
  return sum;
}
size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

using Expected = std::function<float(const Vectors&, size_t i, size_t count)>;

float in_rank_order(const Vectors& in, size_t i, size_t) { return chain(in, i, 0); }
float in_ring_order(const Vectors& in, size_t i, size_t count) {
  const size_t part = lines((count * 4 + kRanks - 1) / kRanks);
  return chain(in, i, static_cast<int>(i * 4 / part) + 1);
}
float in_tree_order(const Vectors& in, size_t i, size_t count) {
  return tree(in, i, 0, kRanks - 1, i * 4 >= lines((count * 4 + 1) / 2));
}

void check_all_reduce(As as, const Expected& expected) {
  for (const size_t count : {size_t{37}, size_t{300}, size_t{30011}}) {
    const Vectors inputs = inputs_of(count);
    run_job(as, kRanks, [&](Rank& me) {
      DeviceBuffer<float> data(count);
      std::memcpy(data.data, inputs[static_cast<size_t>(me.rank)].data(), count * 4);
      NCCL_OK(ncclAllReduce(data.data, data.data, count, ncclFloat, ncclSum, me.comm, me.stream));
      me.sync();
      for (size_t i = 0; i < count; ++i) {
        const float want = expected(inputs, i, count);
        ASSERT_EQ(0, std::memcmp(&want, &data[i], 4)) << i << " of " << count << ": " << want << " " << data[i];
      }
    });
  }
}

class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

TEST(Algorithm, OrdersAreAllDifferent) {
  const Vectors inputs = inputs_of(1000);
  int ring_differs = 0;
  int tree_differs = 0;
  for (size_t i = 0; i < 1000; ++i) {
    ring_differs += in_ring_order(inputs, i, 1000) != in_rank_order(inputs, i, 1000);
    tree_differs += in_tree_order(inputs, i, 1000) != in_rank_order(inputs, i, 1000);
  }
  EXPECT_GT(ring_differs, 100);
  EXPECT_GT(tree_differs, 100);
}

TEST(Algorithm, DirectSumsInRankOrder) { check_all_reduce(As::processes, in_rank_order); }
TEST(Algorithm, RingSumsAlongTheRing) {
  const Setting setting("NCCL_ALGO", "ring");
  check_all_reduce(As::processes, in_ring_order);
  check_all_reduce(As::threads, in_ring_order);
}
TEST(Algorithm, TreeSumsUpItsTrees) {
  const Setting setting("NCCL_ALGO", "Tree");
  check_all_reduce(As::processes, in_tree_order);
  check_all_reduce(As::threads, in_tree_order);
}
TEST(Algorithm, FollowsTheSettingOfTheFunction) {
  const Setting setting("NCCL_ALGO", "^tree;allreduce:tree,nvls");
  check_all_reduce(As::threads, in_tree_order);
}
TEST(Algorithm, IsOverriddenByRankOrder) {
  const Setting algorithm("NCCL_ALGO", "tree");
  const Setting order("LOCKSTEP_HOST_ORDER", "rank");
  check_all_reduce(As::processes, in_rank_order);
}

TEST(Algorithm, OfARingEndsAtWhomTheResultBelongsTo) {
  const Setting setting("NCCL_ALGO", "ring");
  constexpr size_t kEach = 2003;
  const Vectors inputs = inputs_of(kEach * kRanks);
  run_job(As::processes, kRanks, [&](Rank& me) {
    DeviceBuffer<float> data(kEach * kRanks);
    DeviceBuffer<float> out(kEach * kRanks);
    std::memcpy(data.data, inputs[static_cast<size_t>(me.rank)].data(), kEach * kRanks * 4);
    NCCL_OK(ncclReduceScatter(data.data, out.data, kEach, ncclFloat, ncclSum, me.comm, me.stream));
    me.sync();
    for (size_t i = 0; i < kEach; ++i)
      ASSERT_EQ(chain(inputs, kEach * static_cast<size_t>(me.rank) + i, me.rank + 1), out[i]) << i;
    NCCL_OK(ncclReduce(data.data, out.data, kEach, ncclFloat, ncclSum, 2, me.comm, me.stream));
    me.sync();
    if (me.rank != 2) return;
    for (size_t i = 0; i < kEach; ++i) ASSERT_EQ(chain(inputs, i, 3), out[i]) << i;
  });
}

TEST(Algorithm, ThatIsImpossibleIsAnErrorOfTheCall) {
  const Setting setting("NCCL_ALGO", "tree");
  run_job(As::processes, 2, [](Rank& me) {
    DeviceBuffer<float> data(8);
    EXPECT_EQ(ncclInvalidUsage, ncclReduce(data.data, data.data, 4, ncclFloat, ncclSum, 0, me.comm, me.stream));
    EXPECT_STREQ(
        "Error : no algorithm/protocol available for function Reduce with datatype ncclFloat32. NCCL_ALGO was set to "
        "tree.",
        ncclGetLastError(nullptr));
    NCCL_OK(ncclGroupStart());
    NCCL_OK(ncclAllGather(data.data, data.data, 1, ncclBfloat16, me.comm, me.stream));  // found out at the end
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    NCCL_OK(ncclAllReduce(data.data, data.data, 4, ncclFloat, ncclSum, me.comm, me.stream));
    me.sync();
  });
}

TEST(Algorithm, ThatIsUnknownIsAnErrorOfTheCommunicator) {
  const std::pair<const char*, const char*> wrong[] = {
      {"ring,star", "Unrecognized element token \"star\" when parsing \"ring,star\""},
      {"ring;alltogether:tree", "Unrecognized prefix token \"alltogether\" when parsing \"ring;alltogether:tree\""}};
  for (const auto& [value, text] : wrong) {
    const Setting setting("NCCL_ALGO", value);
    ncclUniqueId id;
    NCCL_OK(ncclGetUniqueId(&id));
    run_ranks(As::processes, 1, [&, expected = text](int) {
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclInvalidUsage, ncclCommInitRank(&comm, 1, id, 0));
      EXPECT_STREQ(expected, ncclGetLastError(nullptr));
    });
  }
}

}  // namespace
}  // namespace lockstep::test
