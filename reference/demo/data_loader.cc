// SPDX-License-Identifier: MIT
//
// Shards and batches.

#include "reference/demo/data_loader.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace demo {
namespace {

// Samples beyond the full batches, different from rank to rank and always less than a batch.
int leftover(int rank, int batch) { return (rank * 37 + 11) % batch; }

// Characters a shard takes from the text: its samples and the context in front of the first.
size_t shard_size(int rank, int steps, int batch) {
  return kContext + static_cast<size_t>(steps) * static_cast<size_t>(batch) +
         static_cast<size_t>(leftover(rank, batch));
}

}  // namespace

int steps_that_fit(size_t text_size, int ranks, int batch) {
  size_t overhead = 0;
  for (int rank = 0; rank < ranks; ++rank) overhead += shard_size(rank, 0, batch);
  if (text_size < overhead) return 0;
  return static_cast<int>(
      std::min<size_t>((text_size - overhead) / static_cast<size_t>(ranks) / static_cast<size_t>(batch), 1'000'000));
}

Vocabulary make_vocabulary(std::string_view text) {
  bool seen[256] = {};
  for (char c : text) seen[static_cast<unsigned char>(c)] = true;
  Vocabulary vocabulary;
  for (int c = 0; c < 256; ++c)
    if (seen[c]) vocabulary.id_of[c] = vocabulary.size++;
  return vocabulary;
}

DataLoader open_shard(std::string_view text, const Vocabulary& vocabulary, const Options& options, int rank) {
  size_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += shard_size(r, options.steps, options.batch);
  size_t size = shard_size(rank, options.steps, options.batch);
  if (rank == options.short_rank) size -= static_cast<size_t>(options.batch);

  DataLoader loader;
  loader.rank = rank;
  loader.batch = options.batch;
  loader.batches = static_cast<int>((size - kContext) / static_cast<size_t>(options.batch));
  if (options.drop_last) loader.batches = std::min(loader.batches, options.steps - 1);
  for (char c : text.substr(begin, size)) loader.text.push_back(vocabulary.id_of[static_cast<unsigned char>(c)]);
  return loader;
}

bool next_batch(DataLoader& loader, Batch& batch) {
  if (loader.next == loader.batches) return false;
  const int first = loader.next++ * loader.batch;
  batch.context.clear();
  batch.target.clear();
  for (int sample = first; sample < first + loader.batch; ++sample) {
    const auto at = loader.text.begin() + sample;
    batch.context.insert(batch.context.end(), at, at + kContext);
    batch.target.push_back(at[kContext]);
  }
  batch.id = "shard" + std::to_string(loader.rank) + ":" + std::to_string(first);
  return true;
}

void wait_for_epoch_end(const DataLoader& loader, const Link& link) {
  link.arrive(loader.next);
  pollfd answer{link.fd(), POLLIN, 0};
  while (poll(&answer, 1, -1) < 0 && errno == EINTR) {
  }
  link.all_arrived();
}

}  // namespace demo
