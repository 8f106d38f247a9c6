// SPDX-License-Identifier: MIT
//
// A comparison for people. The first line is the answer; below it the proof for the first difference, then what became
// of everything else.

#include <fmt/format.h>

#include <algorithm>

#include "tools/compare/report.h"
#include "tools/printable.h"
#include "verify/compare/hint.h"
#include "verify/compare/order.h"

namespace lockstep {
namespace {

using verify::Comparison;
using verify::Difference;
using verify::Summary;

constexpr size_t kFewDifferences = 12;
constexpr uint64_t kTellingUlp = 1'000'000;  // more than rounding could make say nothing

std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string ratio_text(const verify::Values& values) {
  return values.norm_a > 0 ? fmt::format("{:.6g}", values.norm_b / values.norm_a) : "-";
}

std::string size_of_comparison(const Comparison& comparison) {
  size_t metrics = 0, tensors = 0;
  for (const auto& [category, summary] : comparison.summaries)
    for (const std::string& name : summary.names) (name == category ? metrics : tensors)++;
  std::string text = counted(comparison.steps.size(), "step");
  if (tensors) text += ", " + counted(tensors, "tensor");
  if (metrics) text += ", " + counted(metrics, "metric");
  return text;
}

std::string how_same(const Comparison& comparison) {
  const Summary total = comparison.total();
  if (total.within == 0) return size_of_comparison(comparison) + ", bitwise";
  return fmt::format("{}: {} comparisons bitwise, {} within tolerance, the largest error {:.2g} ({})",
                     size_of_comparison(comparison), total.bitwise, total.within, total.worst, total.worst_name);
}

// Without the name and the step.
std::string what_differs(const Difference& difference) {
  if (!difference.values) return difference.sentence;
  const verify::Values& values = *difference.values;
  if (values.nan_a + values.nan_b > 0) return fmt::format("NaNs: {} in A, {} in B", values.nan_a, values.nan_b);
  if (difference.tolerance.rtol == 0 && difference.elements > 1 && difference.count)
    return fmt::format("{} of {} elements differ", difference.count, difference.elements);
  const int digits = values.relative < 1.01 * difference.tolerance.rtol ? 6 : 3;  // never "0.01, tolerance 0.01"
  return fmt::format("relative error {:.{}g}, tolerance {:.3g}", values.relative, digits, difference.tolerance.rtol);
}

std::string box_text(const Difference& difference) {
  std::string text = "[";
  for (size_t d = 0; d < difference.box.size(); d++)
    text += fmt::format("{}{}:{}", d ? ", " : "", difference.box[d][0], difference.box[d][1]);
  return text + "]";
}

std::string of_ranks(const std::vector<int>& ranks) {
  return ranks.empty() ? "" : " (" + verify::ranks_text(ranks) + ")";
}

std::string line(const char* head, const std::string& text) {
  return text.empty() ? "" : fmt::format("  {:<14} {}\n", head, printable(text));
}

std::string proof(const Difference& difference) {
  std::string text;
  const bool tensor = difference.elements > 1 || difference.element;
  if (difference.values && !difference.value_a.empty()) {
    if (tensor)
      text += line("first element", fmt::format("{} is {} in A, {} in B", dump::shape_text(difference.index),
                                                difference.value_a, difference.value_b));
    else
      text += line("values", fmt::format("{} in A, {} in B", difference.value_a, difference.value_b));
  }
  if (difference.values && tensor && difference.count)
    text += line("where", fmt::format("{} of {} elements, all within {}; A: {}, B: {}", difference.count,
                                      difference.elements, box_text(difference), verify::ranks_text(difference.ranks_a),
                                      verify::ranks_text(difference.ranks_b)));
  if (difference.values && difference.kind != "nan") {
    const verify::Values& values = *difference.values;
    std::string norms = fmt::format("A {:.6g}, B {:.6g}, ratio {}", values.norm_a, values.norm_b, ratio_text(values));
    if (tensor) norms += fmt::format(", cosine {:.9g}", values.cosine);
    if (values.max_ulp && *values.max_ulp <= kTellingUlp) norms += fmt::format(", up to {} ULP", *values.max_ulp);
    if (tensor)
      text += line("norms", norms);
    else
      text += line("ratio", ratio_text(values));
    text += line("tolerance", fmt::format("{:.3g}; {}", difference.tolerance.rtol, difference.tolerance.reason));
  }
  text += line("hint", difference.hint);
  return text + line("look at", verify::look_at(difference.kind, difference.side, verify::category_of(difference.name),
                                                difference.step));
}

std::string table(const Comparison& comparison) {
  std::string text = fmt::format("  {:<12} {:>7} {:>8} {:>8} {:>9} {:>10}  {:<10} {}\n", "what", "names", "bitwise",
                                 "within", "different", "not judged", "from step", "largest error within");
  for (const std::string& category : comparison.categories) {
    const Summary& each = comparison.summaries.at(category);
    text += fmt::format("  {:<12} {:>7} {:>8} {:>8} {:>9} {:>10}  {:<10} {}\n", printable(category), each.names.size(),
                        each.bitwise, each.within, each.different, each.not_judged,
                        each.first_step ? std::to_string(*each.first_step) : "-",
                        each.within ? fmt::format("{:.2g} {}", each.worst, printable(each.worst_name)) : "-");
  }
  return text;
}

std::string others(const Comparison& comparison, bool all) {
  const size_t shown = all ? comparison.differences.size() : std::min(comparison.differences.size(), kFewDifferences);
  if (shown < 2) return "";
  const auto total = static_cast<size_t>(comparison.all_differences);
  std::string text = shown == total ? "  all differences\n"
                                    : fmt::format("  the first {} of {} differences{}\n", shown, total,
                                                  all ? "" : " (--all shows more)");
  for (size_t i = 0; i < shown; i++) {
    const Difference& each = comparison.differences[i];
    text += fmt::format("    step {:<5} {}  {}", each.step, printable(each.name), printable(what_differs(each)));
    if (each.values && each.values->norm_a > 0) text += ", ratio " + ratio_text(*each.values);
    text += each.values || each.side ? of_ranks(each.side == 'A' ? each.ranks_a : each.ranks_b) + "\n" : "\n";
  }
  return text + "\n";
}

std::string side_text(const verify::Side& side) {
  return side.path + (side.world_size ? " (" + counted(static_cast<size_t>(side.world_size), "rank") + ")" : "");
}

}  // namespace

const char* status_name(verify::Status status) {
  return status == verify::Status::same ? "same" : status == verify::Status::different ? "different" : "incomplete";
}

std::string comparison_sentence(const Comparison& comparison) {
  if (comparison.status == verify::Status::same) return "same: " + how_same(comparison);
  if (comparison.status == verify::Status::incomplete)
    return fmt::format("incomplete: {}{}", comparison.incomplete.front(),
                       comparison.steps.empty() ? "" : "; what was compared is the same: " + how_same(comparison));
  const Difference& first = comparison.differences.front();
  return fmt::format("different from step {}: {}: {}", first.step, first.name, what_differs(first));
}

std::string comparison_text(const Comparison& comparison, bool all, bool colour) {
  const std::string sentence = printable(comparison_sentence(comparison));
  const bool good = comparison.status == verify::Status::same;
  const size_t colon = sentence.find(':');
  std::string text = colour ? fmt::format("\033[1;{}m{}\033[0m\033[1m{}\033[0m\n", good ? 32 : 31,
                                          sentence.substr(0, colon), sentence.substr(colon))
                            : sentence + "\n";
  if (!comparison.differences.empty()) text += proof(comparison.differences.front());
  text += "\n" + line("A", side_text(comparison.a)) + line("B", side_text(comparison.b)) + "\n";
  if (!comparison.summaries.empty()) text += table(comparison) + "\n";
  text += others(comparison, all);
  for (const std::string& each : comparison.incomplete) text += line("incomplete", each);
  for (const std::string& each : comparison.notes) text += line("note", each);
  for (const auto& [dtype, tolerance] : comparison.tolerances)
    text += line("tolerance", fmt::format("{} {:.3g}; {}", dtype, tolerance.rtol, tolerance.reason));
  for (const verify::Control& control : comparison.controls)
    text +=
        line("control",
             control.index.empty() && control.tensor == "metrics"
                 ? std::string("a changed metric is seen")
                 : fmt::format("{} {} ({}): a flipped bit is seen, and a change of twice the tolerance at its place",
                               control.tensor, dump::shape_text(control.index), control.dtype));
  return text;
}

}  // namespace lockstep
