// SPDX-License-Identifier: MIT
//
//   bf16   g = bf16(sum of bf16(g_rank))                            P 2 bytes of all-reduce
//   top-k  e_rank += g_rank;  s_rank = the k largest of e_rank;  e_rank -= s_rank
//          g = sum over ranks of s_rank                             k (4 + e) bytes of all-gather a rank
//
// The all-gather of top-k is two calls, of indices and of values. Sums run in the order of ranks, so that all ranks
// have the same bits.

#include "reference/train/parallel/compress.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/train/kernels/kernels.h"

namespace train {
namespace {

class Bf16Compressor : public Compressor {
 public:
  explicit Bf16Compressor(Memory& memory) : memory_(memory) {}

  void all_reduce(int bucket, View gradient, const Comm& group, const Stream& stream) override {
    View& narrow = narrow_[bucket];
    if (!narrow) narrow = memory_.allocate(Purpose::workspace, Dtype::bf16, gradient.size);
    convert(stream.get(), narrow, gradient);
    group.all_reduce(narrow, ncclSum, stream);
    convert(stream.get(), gradient, narrow);
  }

 private:
  Memory& memory_;
  std::map<int, View> narrow_;
};

class TopkCompressor : public Compressor {
 public:
  TopkCompressor(Memory& memory, double fraction) : memory_(memory), fraction_(fraction) {}

  void all_reduce(int bucket, View gradient, const Comm& group, const Stream& stream) override {
    Bucket& b = buckets_[bucket];
    if (!b.rest) make(b, gradient, group.size());
    const int64_t k = b.values.size;
    add_to(stream.get(), b.rest, gradient, 1);
    take_largest(stream.get(), b.values, b.indices, b.rest, b.order);
    group.all_gather(b.values, b.all_values, stream);
    gather_indices(b, k, group, stream);
    fill(stream.get(), gradient, 0);
    for (int rank = 0; rank < group.size(); ++rank)
      add_at(stream.get(), gradient, b.all_values.part(rank * k, k), b.all_indices + rank * k);
  }

 private:
  struct Bucket {
    View rest, values, all_values;
    int32_t *indices = nullptr, *all_indices = nullptr, *order = nullptr;
  };

  void make(Bucket& b, View gradient, int ranks) {
    const auto k = std::max<int64_t>(1, std::llround(fraction_ * static_cast<double>(gradient.size)));
    const auto numbers = [&](int64_t count) {
      return static_cast<int32_t*>(
          memory_.allocate_bytes(Purpose::workspace, static_cast<size_t>(count) * sizeof(int32_t)));
    };
    b.rest = memory_.allocate(Purpose::workspace, gradient.dtype, gradient.size);
    b.values = memory_.allocate(Purpose::workspace, gradient.dtype, k);
    b.all_values = memory_.allocate(Purpose::workspace, gradient.dtype, k * ranks);
    b.indices = numbers(k);
    b.all_indices = numbers(k * ranks);
    b.order = numbers(gradient.size);
  }

  // Indices travel as what they are, 32 bits; views know no such type.
  static void gather_indices(const Bucket& b, int64_t k, const Comm& group, const Stream& stream) {
    if (group.size() == 1) {
      check(cudaMemcpyAsync(b.all_indices, b.indices, static_cast<size_t>(k) * sizeof(int32_t),
                            cudaMemcpyDeviceToDevice, stream.get()),
            "cudaMemcpyAsync");
      return;
    }
    check(ncclAllGather(b.indices, b.all_indices, static_cast<size_t>(k), ncclInt32, group.get(), stream.get()),
          "ncclAllGather");
  }

  Memory& memory_;
  const double fraction_;
  std::map<int, Bucket> buckets_;
};

}  // namespace

std::unique_ptr<Compressor> make_bf16(Memory& memory) { return std::make_unique<Bf16Compressor>(memory); }
std::unique_ptr<Compressor> make_topk(Memory& memory, double fraction) {
  return std::make_unique<TopkCompressor>(memory, fraction);
}

}  // namespace train
