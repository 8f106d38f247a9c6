// SPDX-License-Identifier: MIT
//
// The text cut into shards, one a rank, and a shard cut into batches.
//
// A sample is a character with the kContext characters before it. Shards are of unequal length, as they are when a text
// is divided by documents: every rank has a few samples more than its full batches, and the short rank has a whole
// batch less than the others. A loop that runs "while there is a batch" then makes one step less on that rank: the
// mistake the demo is about. With drop_last every rank stops where the shortest shard does.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reference/demo/launcher.h"
#include "reference/demo/options.h"

namespace demo {

inline constexpr int kContext = 8;

// How many steps a text of that size gives every rank, the short rank's missing batch not yet subtracted.
int steps_that_fit(size_t text_size, int ranks, int batch);

// Characters as numbers from 0: the model's vocabulary is what occurs in the whole text, so it is the same on all
// ranks.
struct Vocabulary {
  int size = 0;
  int id_of[256] = {};
};
Vocabulary make_vocabulary(std::string_view text);

struct Batch {
  std::vector<int> context;  // [samples, kContext]
  std::vector<int> target;   // [samples]
  std::string id;            // the first sample, as "shard2:1184"
};

struct DataLoader {
  int rank = 0;
  int batch = 0;
  int batches = 0;        // how many this rank will hand out
  int next = 0;           // the batch that comes next
  std::vector<int> text;  // the shard, as numbers
};
DataLoader open_shard(std::string_view text, const Vocabulary& vocabulary, const Options& options, int rank);

// The next batch, or false when the shard has no full batch left.
bool next_batch(DataLoader& loader, Batch& batch);

// Called when the epoch is over on this rank: waits in the launcher's barrier until it is over on all.
void wait_for_epoch_end(const DataLoader& loader, const Link& link);

}  // namespace demo
