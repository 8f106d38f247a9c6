// SPDX-License-Identifier: MIT
//
// The numbers of a step: one value a side, on which all its ranks agree; then the two values.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "verify/compare/session.h"

namespace lockstep::verify {
namespace {

using dump::Metrics;

// As double; token counts are far below 2^53.
std::optional<double> metric_of(const Metrics& metrics, const std::string& name) {
  if (name == "loss") return metrics.loss;
  if (name == "norm") return metrics.norm;
  if (name == "lr") return metrics.lr;
  if (name == "loss_scale") return metrics.loss_scale;
  return metrics.tokens ? std::optional(static_cast<double>(*metrics.tokens)) : std::nullopt;
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

std::string text_of(double value) { return dump::value_text(Dtype::f64, &value); }

double relative_of(double a, double b) {
  if (a == b) return 0;
  const double relative = std::fabs(a - b) / std::fabs(a);
  return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
}

// The value that the ranks agree on; the first rank's, and a difference, where they do not.
std::optional<double> value_of(Session& session, char side, const std::vector<Metrics>& lines, int64_t step,
                               const std::string& name) {
  std::optional<double> value;
  int first = 0;
  for (const Metrics& line : lines) {
    const std::optional<double> mine = metric_of(line, name);
    if (!mine) continue;
    if (!value) {
      value = mine;
      first = line.rank;
    }
    if (same_bits(*mine, *value)) continue;
    Difference difference;
    difference.step = step;
    difference.name = name;
    difference.kind = "ranks-disagree";
    difference.side = side;
    difference.sentence = std::string("in ") + side + " by itself, it is " + text_of(*value) + " on rank " +
                          std::to_string(first) + ", " + text_of(*mine) + " on rank " + std::to_string(line.rank);
    difference.hint =
        "metrics.jsonl holds numbers of the whole step, the same on every rank: a reduction is missing, or a rank's "
        "own number was written";
    (side == 'A' ? difference.ranks_a : difference.ranks_b) = {first, line.rank};
    session.add(std::move(difference));
    break;
  }
  return value;
}

Tolerance tolerance_for(Session& session, const std::string& name) {
  if (name == "tokens" || name == "loss_scale") return {0, "the same number or another"};
  if (name == "lr") return {session.options.rtol.value_or(1e-12), "computed alike from the step's number"};
  return session.tolerance(session.coarsest.value_or(Dtype::f32));
}

Outcome outcome_of(double a, double b, const Tolerance& tolerance) {
  if (std::isnan(a) || std::isnan(b)) return Outcome::different;  // a NaN is the same as nothing
  if (same_bits(a, b)) return Outcome::bitwise;
  return relative_of(a, b) <= tolerance.rtol ? Outcome::within : Outcome::different;
}

}  // namespace

void compare_metric(Session& session, const std::vector<Metrics>& a, const std::vector<Metrics>& b, int64_t step,
                    const std::string& name) {
  const std::optional<double> left = value_of(session, 'A', a, step, name),
                              right = value_of(session, 'B', b, step, name);
  if (!left && !right) return;
  if (!left || !right) return session.leave_out(name, std::string(left ? "B" : "A") + " does not say it", step);
  const Tolerance tolerance = tolerance_for(session, name);
  const Outcome outcome = outcome_of(*left, *right, tolerance);
  session.out.steps.insert(step);
  Summary& summary = session.summary(name);
  if (outcome == Outcome::bitwise) {
    summary.bitwise++;
    return;
  }
  const double relative = relative_of(*left, *right);
  if (outcome == Outcome::within) {
    summary.within++;
    if (relative >= summary.worst) summary.worst = relative, summary.worst_name = name;
    return;
  }
  Difference difference;
  difference.step = step;
  difference.name = name;
  difference.kind = std::isnan(*left) || std::isnan(*right) ? "nan" : "value";
  Values values;
  values.outcome = outcome;
  values.relative = relative;
  values.norm_a = std::fabs(*left);
  values.norm_b = std::fabs(*right);
  values.nan_a = std::isnan(*left);
  values.nan_b = std::isnan(*right);
  difference.values = values;
  difference.tolerance = tolerance;
  difference.value_a = text_of(*left);
  difference.value_b = text_of(*right);
  difference.count = difference.elements = 1;
  difference.hint = metric_hint(name, *left, *right, session.worlds);
  session.add(std::move(difference));
}

MetricLines::MetricLines(char side_, const dump::DumpFolder& folder_) : side(side_), folder(folder_) {
  for (const Metrics& line : folder.metrics) {
    by_step[line.step].push_back(line);
    writers.insert(line.rank);
  }
}

std::vector<Metrics> MetricLines::of(int64_t step) const {
  const auto found = by_step.find(step);
  return found == by_step.end() ? std::vector<Metrics>() : found->second;
}

// A run may log steps that it does not dump: they have the ranks of the dump before.
int MetricLines::ranks_at(int64_t step) const {
  auto at = folder.steps.upper_bound(step);
  if (at != folder.steps.begin()) --at;
  return at == folder.steps.end() ? 0 : at->second.rbegin()->first + 1;
}

void note_missing_lines(Session& session, const MetricLines& lines, int64_t step, int ranks) {
  const auto written = lines.by_step.find(step);
  if (lines.writers.size() < 2 || written == lines.by_step.end()) return;
  std::set<int> silent = lines.writers;
  for (int rank = 0; rank < ranks; rank++) silent.insert(rank);
  for (const Metrics& line : written->second) silent.erase(line.rank);
  if (!silent.empty())
    session.gaps.add(
        std::string(1, lines.side) + " has no line in metrics.jsonl of " + ranks_text({silent.begin(), silent.end()}),
        "", step);
}

void note_lonely_writer(Session& session, const MetricLines& lines) {
  const int side_ranks = lines.side == 'A' ? session.out.a.world_size : session.out.b.world_size;
  int ranks = side_ranks;
  for (const auto& [step, files] : lines.folder.steps) ranks = std::max(ranks, files.rbegin()->first + 1);
  if (lines.writers.size() == 1 && ranks > 1)
    session.out.notes.push_back("in " + std::string(1, lines.side) + " the metrics are those of rank " +
                                std::to_string(*lines.writers.begin()) + " alone, of " + std::to_string(ranks) +
                                " ranks: whether the others agree is not known");
}

Control metric_control() {
  const Tolerance tolerance = tolerance_of(Dtype::f64);
  const bool seen = outcome_of(5.5, 5.5 * (1 + 2 * tolerance.rtol), tolerance) == Outcome::different &&
                    outcome_of(5.5, std::nan(""), tolerance) == Outcome::different &&
                    outcome_of(std::nan(""), std::nan(""), tolerance) == Outcome::different &&
                    outcome_of(5.5, std::nextafter(5.5, 6), tolerance) == Outcome::within &&
                    outcome_of(5.5, 5.5, tolerance) == Outcome::bitwise;
  return {"metrics", "F64", {}, seen ? "" : "a changed metric was not seen"};
}

}  // namespace lockstep::verify
