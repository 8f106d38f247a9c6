// SPDX-License-Identifier: MIT
//
// Attention over split sequences against attention over whole ones: result, log-sum-exp and gradients, with packed
// documents, grouped key/value heads, dropout and several sequences.

#include "reference/train/parallel/context.h"

#include <algorithm>
#include <random>

#include "tests/train/parallel/ranks.h"

namespace train {
namespace {

constexpr int64_t kSequences = 2, kLength = 16, kHeads = 8, kKvHeads = 4, kHeadWidth = 3;
constexpr int64_t kColumns = (kHeads + 2 * kKvHeads) * kHeadWidth;  // of qkv, side by side

// Element (global row, column) of an operand.
double element(unsigned what, int64_t row, int64_t column) {
  std::mt19937 engine(what * 1000003U + static_cast<unsigned>(row * 1009 + column));
  return std::normal_distribution<double>()(engine);
}

// The rows of every sequence that stand at these places.
std::vector<double> operand(unsigned what, const std::vector<int64_t>& places, int64_t columns) {
  std::vector<double> values;
  for (int64_t sequence = 0; sequence < kSequences; ++sequence)
    for (const int64_t place : places)
      for (int64_t column = 0; column < columns; ++column)
        values.push_back(element(what, sequence * kLength + place, column));
  return values;
}

struct Result {
  std::vector<double> out, qkv_grad;  // [sequences, places, columns]
};

struct Arrays {
  std::vector<int32_t> order, documents;
  std::vector<int64_t> samples;
};
Arrays arrays_of(const std::vector<int64_t>& places) {
  Arrays arrays;
  for (int64_t sequence = 0; sequence < kSequences; ++sequence)
    for (const int64_t place : places) {
      arrays.order.push_back(static_cast<int32_t>(place));
      arrays.documents.push_back(sequence == 0 ? 0 : place < 7 ? 1 : 2);  // a border inside a chunk
      arrays.samples.push_back(100 + sequence);
    }
  return arrays;
}

Result attention(Groups groups) {
  Memory memory(groups.cp.rank());
  const Stream stream;
  Exchange exchange(memory);
  Arena arena(memory, Purpose::activations);
  const int size = groups.cp.size();
  std::vector<int64_t> places(kLength);
  std::iota(places.begin(), places.end(), 0);
  if (size > 1) places = context_places(kLength, groups.cp.rank(), size);
  Arrays all;
  for (int rank = 0; size > 1 && rank < size; ++rank) {
    const Arrays part = arrays_of(context_places(kLength, rank, size));
    all.order.insert(all.order.end(), part.order.begin(), part.order.end());
    all.documents.insert(all.documents.end(), part.documents.begin(), part.documents.end());
  }
  const Arrays own = arrays_of(places);
  Batch batch;
  batch.sequences = kSequences;
  batch.length = kLength / size;
  batch.order = device_copy(memory, own.order);
  batch.documents = device_copy(memory, own.documents);
  batch.samples = device_copy(memory, own.samples);
  batch.all_order = device_copy(memory, all.order);
  batch.all_documents = device_copy(memory, all.documents);

  const int64_t queries = kHeads * kHeadWidth, keys = kKvHeads * kHeadWidth;
  const AttentionShape shape{kSequences, batch.length, batch.length, kHeads,  kKvHeads,
                             kHeadWidth, kColumns,     kColumns,     queries, 0};
  const View qkv = device_view(memory, operand(1, places, kColumns));
  const View out_grad = device_view(memory, operand(2, places, queries));
  const auto take = [&](int64_t columns) { return arena.take(Dtype::f64, batch.rows() * columns); };
  const View out = take(queries), lse = take(kHeads), qkv_grad = take(kColumns);
  const auto k = [&](View view) { return view.part(queries, view.size - queries); };
  const auto v = [&](View view) { return view.part(queries + keys, view.size - queries - keys); };
  const RandomStream random{7, RandomUse::attention_dropout, 3};
  if (size == 1) {
    const AttentionRows rows{batch.order, batch.documents, batch.order, batch.documents, batch.samples};
    const View delta = take(kHeads);
    attention_forward(stream.get(), out, lse, qkv, k(qkv), v(qkv), shape, rows, random, 0.25, false);
    attention_delta(stream.get(), delta, out_grad, out, shape);
    attention_backward(stream.get(), {qkv_grad}, {k(qkv_grad)}, {v(qkv_grad)}, out_grad, qkv, k(qkv), v(qkv), lse,
                       delta, shape, rows, random, 0.25);
  } else {
    const ContextAttention call{groups, stream, exchange, batch, shape, random, 0.25};
    const View saved = context_forward(call, out, lse, qkv, k(qkv), v(qkv), arena);
    context_backward(call, qkv_grad, k(qkv_grad), v(qkv_grad), out_grad, out, qkv, k(qkv), v(qkv), lse, saved);
  }
  return {numbers(stream, out), numbers(stream, qkv_grad)};
}

std::vector<double> rows_at(const std::vector<double>& whole, const std::vector<int64_t>& places, int64_t columns) {
  std::vector<double> part;
  for (int64_t sequence = 0; sequence < kSequences; ++sequence)
    for (const int64_t place : places) {
      const auto row = whole.begin() + (sequence * kLength + place) * columns;
      part.insert(part.end(), row, row + columns);
    }
  return part;
}

class ContextParallel : public testing::TestWithParam<std::tuple<int, ContextWay>> {};

TEST_P(ContextParallel, AttentionEqualsThatOfWholeSequences) {
  set_devices(4);
  const auto [ranks, way] = GetParam();
  Result whole;
  run_as_ranks(1, [&](Comm) { whole = attention({}); });
  run_as_ranks(ranks, [&, size = ranks, how = way](Comm comm) {
    Groups groups;
    groups.cp = std::move(comm);
    groups.context = how;
    const auto places = context_places(kLength, groups.cp.rank(), size);
    const Result part = attention(std::move(groups));
    EXPECT_LT(distance(part.out, rows_at(whole.out, places, kHeads * kHeadWidth)), 1e-14);
    EXPECT_LT(distance(part.qkv_grad, rows_at(whole.qkv_grad, places, kColumns)), 1e-14);
  });
}
INSTANTIATE_TEST_SUITE_P(Ways, ContextParallel,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Values(ContextWay::ring, ContextWay::all_gather,
                                                          ContextWay::ulysses)));

TEST(ContextPlaces, AnEarlyChunkAndALateOne) {
  EXPECT_EQ(context_places(8, 0, 2), (std::vector<int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(context_places(8, 1, 2), (std::vector<int64_t>{2, 3, 4, 5}));
  std::vector<int64_t> all;
  for (int rank = 0; rank < 3; ++rank)
    for (const int64_t place : context_places(12, rank, 3)) all.push_back(place);
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int64_t>(i));
}

}  // namespace
}  // namespace train
