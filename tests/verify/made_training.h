// SPDX-License-Identifier: MIT
//
// A small training made by hand, its dumps on one rank and on four, and what a comparison says after a change to one.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/demo/process.h"
#include "tests/verify/made_dumps.h"
#include "verify/compare/compare.h"

namespace lockstep::verify {

using namespace lockstep::test;

inline const std::string kWte = "transformer.wte.weight", kAttn = "transformer.h.0.attn.c_attn.weight",
                         kHead = "lm_head.weight";
inline const std::vector<int64_t> kWteShape = {10, 4}, kAttnShape = {12, 4}, kHeadShape = {10, 4};

// One training of three parameters, whose numbers a test may change before it is written.
struct Training {
  std::map<std::string, MadeTensor> tensors;
  dump::Metrics metrics{.loss = 5.25, .tokens = 96, .norm = 1.5, .lr = 1e-3, .loss_scale = 1.0};

  explicit Training(Dtype dtype = Dtype::f64) {
    for (const char* category : {"grad/", "param/", "adam_m/", "adam_v/"}) {
      tensors[category + kWte] = made(category + kWte, kWteShape, dtype);
      tensors[category + kAttn] = made(category + kAttn, kAttnShape, dtype);
      tensors[category + kHead] = made(category + kHead, kHeadShape, dtype);
    }
    tensors["act/transformer.h.0.attn"] = made("act", {2, 6, 4}, dtype);
    tensors["batch/tokens"] = {{2, 6}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 4}, Dtype::i32};
  }
  MadeTensor& operator[](const std::string& name) { return tensors.at(name); }
  void scale(const std::string& name, double by) {
    for (double& value : tensors.at(name).values) value *= by;
  }

  // Everything on one rank.
  std::string one(const TemporaryFolder& folder, const std::string& name, int64_t steps = 2) const {
    MadeDump dump(folder.path(name), 1);
    for (int64_t step = 1; step <= steps; step++) {
      for (const auto& [each, tensor] : tensors) dump.tensor(step, 0, each, tensor, whole(tensor));
      add_metrics(dump, step);
    }
    return dump.write();
  }

  // Four ranks: batches and activations cut by samples and copied, parameters copied, gradients and matrices cut by
  // rows, by columns and flat.
  std::string four(const TemporaryFolder& folder, const std::string& name, int64_t steps = 2) const {
    MadeDump dump(folder.path(name), 4);
    for (int64_t step = 1; step <= steps; step++) {
      for (const auto& [each, tensor] : tensors)
        for (int rank = 0; rank < 4; rank++) dump.tensor(step, rank, each, tensor, placement(each, tensor, rank));
      add_metrics(dump, step);
    }
    return dump.write();
  }

  static Placement placement(const std::string& name, const MadeTensor& tensor, int rank) {
    const int half = rank % 2;
    std::vector<dump::Range> all;
    for (const int64_t extent : tensor.shape) all.push_back({0, extent});
    if (name.rfind("batch/", 0) == 0 || name.rfind("act/", 0) == 0) {
      all[0] = {half, half + 1};
      return sliced(tensor, all, Kind::replica);
    }
    if (name.rfind("adam_", 0) == 0) {  // ZeRO: pieces of unequal length
      const int64_t count = dump::elements_of(tensor.shape), part = count / 4 + 1;
      const int64_t begin = std::min(count, rank * part);
      return flat(tensor, {{begin, std::min(count, begin + part)}});
    }
    if (name.find("c_attn") != std::string::npos) {
      all[1] = {rank, rank + 1};
      return sliced(tensor, all);
    }
    if (name.find("lm_head") != std::string::npos) {
      all[0] = {5 * half, 5 * half + 5};
      return sliced(tensor, all, Kind::replica);
    }
    return whole(tensor, Kind::replica);
  }

  void add_metrics(MadeDump& dump, int64_t step) const {
    dump::Metrics line = metrics;
    line.step = step;
    dump.metrics_on_all(line);
  }
};

inline Comparison compared(const std::string& a, const std::string& b, const CompareOptions& options = {}) {
  Result<Comparison> comparison = compare_folders(a, b, options);
  EXPECT_TRUE(comparison) << comparison.error();
  return comparison ? *comparison : Comparison{};
}

inline std::string all_incomplete(const Comparison& comparison) {
  std::string text;
  for (const std::string& each : comparison.incomplete) text += each + "\n";
  return text;
}

struct Seen {
  std::string name, kind, hint;
};

// The first difference after a change to a four-rank training.
inline Seen seen_after(const std::function<void(Training&)>& change,
                       const std::function<void(const std::string&)>& damage = {}) {
  const TemporaryFolder folder;
  Training a, b;
  change(b);
  a.one(folder, "a", 1);
  b.four(folder, "b", 1);
  if (damage) damage(folder.path("b"));
  const Comparison comparison = compared(folder.path("a"), folder.path("b"));
  if (comparison.differences.empty()) return {"nothing", all_incomplete(comparison), ""};
  const Difference& first = comparison.differences[0];
  return {first.name, first.kind, first.sentence + " / " + first.hint};
}

#define EXPECT_SEEN(seen, wanted_name, wanted_kind, words)                       \
  do {                                                                           \
    const Seen it = seen;                                                        \
    EXPECT_EQ(it.name, wanted_name);                                             \
    EXPECT_EQ(it.kind, wanted_kind);                                             \
    EXPECT_NE(it.hint.find(words), std::string::npos) << "it says: " << it.hint; \
  } while (false)

}  // namespace lockstep::verify
