// SPDX-License-Identifier: MIT
//
// A comparison in the making: what compare.cc, compare_tensor.cc and compare_metrics.cc share.

#pragma once

#include "verify/compare/compare.h"
#include "verify/compare/gaps.h"
#include "verify/compare/hint.h"

namespace lockstep::verify {

struct Session {
  const CompareOptions& options;
  Comparison out = {};
  Worlds worlds = {};
  Gaps gaps = {};
  // Types of A and B, where they are not the same -> tensors of which that is so.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> dtypes = {};
  std::optional<Dtype> computed_in = {};  // the coarsest type that a side says it computed in
  std::optional<Dtype> coarsest = {};     // of floats seen so far; metrics are held to its tolerance

  bool wanted(const std::string& name) const;
  bool wanted_metric() const;
  Summary& summary(const std::string& name);
  Tolerance tolerance(Dtype dtype);
  void add(Difference difference);
  void leave_out(const std::string& name, const std::string& why, int64_t step);
};

// One step's files of one side.
struct StepSide {
  char name;  // 'A' or 'B'
  const dump::DumpStep& step;
  bool has_category(const std::string& category) const;
};

struct ComparedTensor {
  bool sound = false;  // both sides could be assembled
  Dtype dtype = Dtype::f32;
  int64_t elements = 0;
};
// A and B call all tensors of a category by other names: one difference.
bool names_are_others(const StepSide& a, const StepSide& b, const std::string& category);
void note_other_names(Session& session, const StepSide& a, const StepSide& b, const std::string& category);
ComparedTensor compare_tensor(Session& session, const StepSide& a, const StepSide& b, const std::string& name);

// The metrics of a step: names in the order of the computation, and their comparison.
inline constexpr const char* kMetricNames[] = {"tokens", "loss", "loss_scale", "norm", "lr"};
bool is_metric(const std::string& name);
// Lines that are missing of a side's ranks in a step. Where one rank alone writes, in the whole folder, it speaks for
// all: that is a note.
struct MetricLines {
  char side;
  const dump::DumpFolder& folder;
  std::map<int64_t, std::vector<dump::Metrics>> by_step = {};
  std::set<int> writers = {};

  MetricLines(char side, const dump::DumpFolder& folder);
  std::vector<dump::Metrics> of(int64_t step) const;
  int ranks_at(int64_t step) const;  // by the names of files; 0 where there is none
};
void note_missing_lines(Session& session, const MetricLines& lines, int64_t step, int ranks);
void note_lonely_writer(Session& session, const MetricLines& lines);
void compare_metric(Session& session, const std::vector<dump::Metrics>& a, const std::vector<dump::Metrics>& b,
                    int64_t step, const std::string& name);
Control metric_control();

}  // namespace lockstep::verify
