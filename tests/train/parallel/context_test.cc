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

// Element (global row, column) of an operand: a number that bf16 has.
double element(unsigned what, int64_t row, int64_t column) {
  std::mt19937 engine(what * 1000003U + static_cast<unsigned>(row * 1009 + column));
  return std::round(16 * std::normal_distribution<double>()(engine)) / 16;
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

Result attention(Groups groups, Dtype type = Dtype::f64) {
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
  const auto take = [&](int64_t columns, Dtype of) { return arena.take(of, batch.rows() * columns); };
  const auto put = [&](unsigned what, int64_t columns) {
    const View view = take(columns, type);
    convert(stream.get(), view, device_view(memory, operand(what, places, columns)));
    return view;
  };
  const View qkv = put(1, kColumns), out_grad = put(2, queries);
  const View out = take(queries, type), lse = take(kHeads, wide(type)), qkv_grad = take(kColumns, type);
  const auto k = [&](View view) { return view.part(queries, view.size - queries); };
  const auto v = [&](View view) { return view.part(queries + keys, view.size - queries - keys); };
  const RandomStream random{7, RandomUse::attention_dropout, 3};
  if (size == 1) {
    const AttentionRows rows{batch.order, batch.documents, batch.order, batch.documents, batch.samples};
    const View delta = take(kHeads, wide(type));
    attention_forward(stream.get(), out, lse, qkv, k(qkv), v(qkv), shape, rows, random, 0.25, false);
    attention_delta(stream.get(), delta, out_grad, out, shape);
    attention_backward(stream.get(), {qkv_grad}, {k(qkv_grad)}, {v(qkv_grad)}, out_grad, qkv, k(qkv), v(qkv), lse,
                       delta, shape, rows, random, 0.25);
  } else {
    const ContextAttention call{groups, stream, exchange, batch, shape, random, 0.25};
    const View saved = context_forward(call, out, lse, qkv, k(qkv), v(qkv), arena);
    context_backward(call, qkv_grad, k(qkv_grad), v(qkv_grad), out_grad, out, qkv, k(qkv), v(qkv), lse, saved);
  }
  const auto got = [&](View view) {
    const View exact = arena.take(Dtype::f64, view.size);
    convert(stream.get(), exact, view);
    return numbers(stream, exact);
  };
  return {got(out), got(qkv_grad)};
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

std::vector<double> columns_of(const std::vector<double>& qkv, int64_t begin, int64_t end) {
  std::vector<double> part;
  for (auto row = qkv.begin(); row != qkv.end(); row += kColumns) part.insert(part.end(), row + begin, row + end);
  return part;
}

// Attention over whole sequences rounds a bf16 result, and a gradient, once. So do blocks of them that are merged.
TEST_P(ContextParallel, Bf16IsRoundedOnce) {
  set_devices(4);
  const auto [ranks, way] = GetParam();
  Result exact, whole;
  run_as_ranks(1, [&](Comm) {
    exact = attention({});
    whole = attention({}, Dtype::bf16);
  });
  run_as_ranks(ranks, [&, size = ranks, how = way](Comm comm) {
    Groups groups;
    groups.cp = std::move(comm);
    groups.context = how;
    const auto places = context_places(kLength, groups.cp.rank(), size);
    const Result part = attention(std::move(groups), Dtype::bf16);
    const auto expect_as_good = [&](const char* what, const auto& got, const auto& of_whole, const auto& of_exact) {
      EXPECT_LT(distance(got, of_exact), 1.01 * distance(of_whole, of_exact)) << what;
    };
    const int64_t queries = kHeads * kHeadWidth;
    const auto out = [&](const Result& result) { return rows_at(result.out, places, queries); };
    const auto grad = [&](const Result& result) { return rows_at(result.qkv_grad, places, kColumns); };
    expect_as_good("result", part.out, out(whole), out(exact));
    expect_as_good("queries", columns_of(part.qkv_grad, 0, queries), columns_of(grad(whole), 0, queries),
                   columns_of(grad(exact), 0, queries));
    expect_as_good("keys and values", columns_of(part.qkv_grad, queries, kColumns),
                   columns_of(grad(whole), queries, kColumns), columns_of(grad(exact), queries, kColumns));
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
