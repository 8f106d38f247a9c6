// SPDX-License-Identifier: MIT
//
// Expert parallelism (Lepikhin et al. 2020, 2006.16668, section 2.2; Fedus et al. 2021, 2101.03961, section 2): an MLP
// is replaced by many, the experts, of which a router picks top_k for each token. Rank r of the ep group has experts
// [r, r + 1) * E / ep, and tokens travel: two all-to-alls forward (to the experts and back) and two backward.
//
//   every rank picks top_k experts for each of its tokens
//   counts are exchanged, so that everybody knows what will arrive: the only time a step waits for the device
//   rows go to their experts, the experts' MLPs run, rows come back
//   y = sum over a token's experts of gate * row
//
// Capacity: an expert takes ceil(capacity * top_k * length / E) rows of one sequence, first choices before second ones
// and early tokens before late ones; what is beyond is dropped, and its token keeps its residual. Counted by sequence,
// which no layout changes, not by rank. Without a capacity nothing is dropped.
//
// ep does not multiply the world: the group is a part of the ranks that share a pipeline stage, which hold different
// tokens. Gradients of an expert are summed over the ranks that hold it (edp), those of all else over dp x cp.

#pragma once

#include <cstdint>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"

namespace train {

// Where the tokens of this rank go. Rows are sent in the order of experts; arriving rows lie by expert of this rank,
// and for each by sender.
struct ExpertPlan {
  int64_t experts = 0, ranks = 1;
  std::vector<int64_t> sent;     // [experts]
  std::vector<int64_t> arrived;  // [experts of this rank * ranks]
  std::vector<int32_t> rows;     // the token of each sent row
  std::vector<int32_t> slots;    // [tokens * top_k] the sent row of each choice, -1: dropped
  std::vector<int32_t> loads;    // [sequences * experts] choices of all tokens of a sequence, dropped ones too

  int64_t local() const { return experts / ranks; }
  int64_t total_sent() const { return static_cast<int64_t>(rows.size()); }
  int64_t total_arrived() const;
  int64_t arrived_at(int64_t expert) const;  // rows that arrive for an expert of this rank
};

// The choices of all tokens of the micro-batch's sequences, wherever they are.
struct Choices {
  std::vector<int32_t> experts;     // [tokens, top_k]
  std::vector<int32_t> order;       // [tokens] place in the sequence
  int64_t sequences = 1, part = 0;  // `part` tokens of a sequence stand together; then comes the next sequence, ...
  int64_t first = 0, count = 0;     // tokens of this rank
};
// capacity 0: nothing is dropped. `arrived` is left for exchange_counts.
ExpertPlan plan_experts(const Choices& choices, int64_t experts, int64_t top_k, double capacity, int64_t length);

// Waits for the stream.
void exchange_counts(ExpertPlan& plan, const Comm& ep, const Stream& stream, Arena& workspace);
// [total_sent, width] -> [total_arrived, width], and back.
void to_experts(const ExpertPlan& plan, const Comm& ep, const Stream& stream, View sent, View arrived, int64_t width);
void from_experts(const ExpertPlan& plan, const Comm& ep, const Stream& stream, View results, View returned,
                  int64_t width);

}  // namespace train
