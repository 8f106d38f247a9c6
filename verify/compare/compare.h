// SPDX-License-Identifier: MIT
//
// Two dump folders, of any layouts: step after step, and within a step in the order of the computation, both sides are
// assembled and compared. The result is a value; text and JSON print it and decide nothing.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "verify/assemble/assemble.h"
#include "verify/compare/control.h"
#include "verify/compare/values.h"
#include "verify/dump/folder.h"

namespace lockstep::verify {

struct CompareOptions {
  std::optional<double> rtol = {};   // instead of the tolerances by dtype
  std::optional<int64_t> step = {};  // only this one
  std::string only = {};             // names that match: with * ? [] as file names, else that contain it
  bool sum_partials = false;
  std::function<void(int64_t step, size_t done, size_t of)> progress = {};
};

// Something that is not the same, or not right in one folder by itself.
struct Difference {
  int64_t step = 0;
  std::string name;
  std::string kind;  // "value", "nan", "shape", "dtype", "missing", or the name of a Fault
  char side = 0;     // 'A' or 'B' where it is a matter of one folder alone
  std::string sentence, hint;
  // For kinds value and nan.
  std::optional<Values> values;
  Tolerance tolerance;
  // Where; the index is empty where it has none.
  std::optional<int64_t> element;
  std::vector<int64_t> index;
  std::string value_a, value_b;
  std::vector<int> ranks_a, ranks_b;  // whose elements differ; of a fault, in its side's list
  int64_t count = 0;                  // of elements that differ
  int64_t elements = 0;               // of the tensor
  std::vector<dump::Range> box;       // the smallest that holds them
};

// What became of all tensors of a category, or of a metric.
struct Summary {
  std::set<std::string> names;
  int64_t bitwise = 0, within = 0, different = 0, not_judged = 0;
  std::optional<int64_t> first_step;  // with a difference
  double worst = 0;                   // largest relative error of those within
  std::string worst_name;
};

struct Side {
  std::string path;
  std::vector<int64_t> steps;  // with tensors
  int world_size = 0;          // largest
};

enum class Status { same, different, incomplete };

struct Comparison {
  static constexpr size_t kMostDifferences = 1000;

  Status status = Status::same;
  Side a, b;
  std::set<int64_t> steps;              // in which something was compared
  std::vector<std::string> categories;  // in the order of the computation
  std::map<std::string, Summary> summaries;
  std::vector<Difference> differences;  // in the order of the computation, the first so many
  int64_t all_differences = 0;
  std::vector<std::string> incomplete;          // what evidence is missing, a sentence each
  std::vector<std::string> notes;               // what else one should know
  std::map<std::string, Tolerance> tolerances;  // by dtype, as they were used
  std::vector<Control> controls;

  Summary total() const;
  bool compared_metrics() const;
};

// An error is something that cannot be read, an option that fits nothing, or a control that failed.
Result<Comparison> compare_folders(const std::string& a, const std::string& b, const CompareOptions& options);

}  // namespace lockstep::verify
