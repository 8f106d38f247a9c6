// SPDX-License-Identifier: MIT
//
// A micro-batch is one block, six arrays one after another: samples first, whose elements are the widest. Where
// sequences are split over ranks, the order and the documents of all of them follow.

#include "reference/train/run/batches.h"

#include "reference/train/kernels/philox.h"

namespace train {
namespace {

struct Arrays {
  int64_t* samples;
  int32_t *tokens, *targets, *positions, *documents, *order, *all_documents, *all_order;
};
Arrays arrays_at(char* block, size_t rows, size_t all_rows) {
  auto* numbers = reinterpret_cast<int32_t*>(block + rows * sizeof(int64_t));
  return {reinterpret_cast<int64_t*>(block),
          numbers,
          numbers + rows,
          numbers + 2 * rows,
          numbers + 3 * rows,
          numbers + 4 * rows,
          numbers + 5 * rows,
          numbers + 5 * rows + all_rows};
}

}  // namespace

Batches::Batches(Memory& memory, const BatchShape& shape)
    : shape_(shape),
      rows_(static_cast<size_t>(shape.sequences) * shape.places.size()),
      all_rows_(rows_ * shape.all_places.size()),
      bytes_(rows_ * (sizeof(int64_t) + 5 * sizeof(int32_t)) + all_rows_ * 2 * sizeof(int32_t)) {
  const size_t all = bytes_ * static_cast<size_t>(shape.micro_batches);
  device_ = static_cast<char*>(memory.allocate_bytes(Purpose::workspace, all));
  check(cudaMallocHost(reinterpret_cast<void**>(&host_), all), "cudaMallocHost");
  for (int k = 0; k < shape.micro_batches; ++k) {
    const Arrays a = arrays_at(device_ + static_cast<size_t>(k) * bytes_, rows_, all_rows_);
    Batch batch;
    batch.sequences = shape.sequences;
    batch.length = static_cast<int64_t>(shape.places.size());
    batch.tokens = a.tokens;
    batch.targets = a.targets;
    batch.positions = a.positions;
    batch.documents = a.documents;
    batch.order = a.order;
    batch.samples = a.samples;
    if (all_rows_ > 0) {
      batch.all_documents = a.all_documents;
      batch.all_order = a.all_order;
    }
    batches_.push_back(batch);
  }
}

Batches::~Batches() { cudaFreeHost(host_); }

bool Batches::drops_target(int64_t number, int64_t place) const {
  if (shape_.mask_fraction == 0) return false;
  const RandomStream random{shape_.seed, RandomUse::label_mask, 0};
  return uniform_of(random_words(random, number, place, 0)[0]) < shape_.mask_fraction;
}

void Batches::fill_row(const Text& text, int k, int64_t row, const Row& from) {
  const Arrays a = arrays_at(host_ + static_cast<size_t>(k) * bytes_, rows_, all_rows_);
  size_t i = static_cast<size_t>(row) * shape_.places.size();
  for (const int64_t place : shape_.places) {
    a.samples[i] = from.number;
    a.tokens[i] = text.token(from.sample, place);
    a.targets[i] =
        from.masked || (from.training && drops_target(from.number, place)) ? -1 : text.target(from.sample, place);
    a.positions[i] = text.position(from.sample, place);
    a.documents[i] = text.document(from.sample, place);
    a.order[i] = static_cast<int32_t>(place);
    targets_ += a.targets[i] >= 0 ? 1 : 0;
    ++i;
  }
  for (size_t rank = 0; rank < shape_.all_places.size(); ++rank) {
    i = rank * rows_ + static_cast<size_t>(row) * shape_.places.size();
    for (const int64_t place : shape_.all_places[rank]) {
      a.all_documents[i] = text.document(from.sample, place);
      a.all_order[i++] = static_cast<int32_t>(place);
    }
  }
}

void Batches::copy(const Stream& stream) const {
  check(cudaMemcpyAsync(device_, host_, bytes_ * batches_.size(), cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync");
}

void Batches::load(const Text& text, Sampler& sampler, const Stream& stream) {
  targets_ = 0;
  for (int k = 0; k < shape_.micro_batches; ++k)
    for (int64_t row = 0; row < shape_.sequences; ++row) {
      const int64_t piece = int64_t{k} * shape_.dp_size + shape_.dp_rank;
      const int64_t number = sampler.state().next + piece * shape_.sequences + row;
      const int64_t sample = sampler.sample(number);
      fill_row(text, k, row, {sample, number, false, true});
      last_number_ = number;
      last_sample_ = "epoch" + std::to_string(sampler.epoch(number)) + ":sample" + std::to_string(sample);
    }
  copy(stream);
}

void Batches::load_held_out(const Text& text, int64_t first, const Stream& stream) {
  targets_ = 0;
  for (int k = 0; k < shape_.micro_batches; ++k)
    for (int64_t row = 0; row < shape_.sequences; ++row) {
      const int64_t piece = first + int64_t{k} * shape_.dp_size + shape_.dp_rank;
      const int64_t number = piece * shape_.sequences + row;
      const bool beyond = number >= text.held_out();
      fill_row(text, k, row, {text.samples() + (beyond ? 0 : number), number, beyond, false});
    }
  copy(stream);
}

std::vector<Batches::Field> Batches::fields(int64_t length) const {
  Field tokens{"tokens", {}, {}}, targets{"targets", {}, {}}, mask{"mask", {}, {}};
  for (int k = 0; k < shape_.micro_batches; ++k) {
    const Arrays a = arrays_at(host_ + static_cast<size_t>(k) * bytes_, rows_, all_rows_);
    const std::vector<int64_t> places = rows(k, length);
    for (size_t i = 0; i < rows_; ++i) {
      tokens.values.push_back(a.tokens[i]);
      targets.values.push_back(a.targets[i]);
      mask.values.push_back(a.targets[i] >= 0 ? 1 : 0);
      const int64_t at = places[i];
      std::vector<std::array<int64_t, 2>>& ranges = tokens.ranges;
      if (!ranges.empty() && ranges.back()[1] == at)
        ++ranges.back()[1];
      else
        ranges.push_back({at, at + 1});
    }
  }
  targets.ranges = mask.ranges = tokens.ranges;
  return {tokens, targets, mask};
}

std::vector<int64_t> Batches::rows(int k, int64_t length) const {
  const int64_t piece = int64_t{k} * shape_.dp_size + shape_.dp_rank;
  std::vector<int64_t> rows;
  for (int64_t sequence = 0; sequence < shape_.sequences; ++sequence)
    for (const int64_t place : shape_.places) rows.push_back((piece * shape_.sequences + sequence) * length + place);
  return rows;
}

}  // namespace train
