// SPDX-License-Identifier: MIT
//
// `compare --json`, described by docs/compare-schema.json.

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/compare/report.h"
#include "verify/compare/hint.h"
#include "verify/compare/order.h"

namespace lockstep {
namespace {

using nlohmann::ordered_json;
using verify::Difference;

// JSON has no infinity and no NaN: null.
ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json(nullptr) : ordered_json(text); }

ordered_json values_json(const Difference& difference) {
  if (!difference.values) return nullptr;
  const verify::Values& values = *difference.values;
  return {{"relative", number(values.relative)},
          {"rtol", difference.tolerance.rtol},
          {"norm_a", number(values.norm_a)},
          {"norm_b", number(values.norm_b)},
          {"ratio", number(values.norm_b / values.norm_a)},
          {"cosine", number(values.cosine)},
          {"max_ulp",
           values.max_ulp && *values.max_ulp != UINT64_MAX ? ordered_json(*values.max_ulp) : ordered_json(nullptr)},
          {"nan_a", values.nan_a},
          {"nan_b", values.nan_b}};
}

ordered_json difference_json(const Difference& difference) {
  ordered_json out;
  out["step"] = difference.step;
  out["name"] = difference.name;
  out["kind"] = difference.kind;
  out["side"] = difference.side ? ordered_json(std::string(1, difference.side)) : ordered_json(nullptr);
  out["sentence"] = text_or_null(difference.sentence);
  out["values"] = values_json(difference);
  out["index"] = difference.element ? ordered_json(difference.index) : ordered_json(nullptr);
  out["element"] = difference.element ? ordered_json(*difference.element) : ordered_json(nullptr);
  out["value_a"] = text_or_null(difference.value_a);
  out["value_b"] = text_or_null(difference.value_b);
  out["ranks_a"] = difference.ranks_a;
  out["ranks_b"] = difference.ranks_b;
  out["count"] = difference.count;
  out["elements"] = difference.elements;
  out["box"] = difference.box.empty() ? ordered_json(nullptr) : ordered_json(difference.box);
  out["hint"] = text_or_null(difference.hint);
  return out;
}

ordered_json side_json(const verify::Side& side) {
  return {{"path", side.path}, {"ranks", side.world_size}, {"steps", side.steps}};
}

}  // namespace

std::string comparison_json(const verify::Comparison& comparison) {
  ordered_json out;
  out["lockstep"] = LOCKSTEP_VERSION;
  out["status"] = status_name(comparison.status);
  out["summary"] = comparison_sentence(comparison);
  out["a"] = side_json(comparison.a);
  out["b"] = side_json(comparison.b);
  out["steps"] = comparison.steps;
  out["first"] = nullptr;
  if (!comparison.differences.empty()) {
    const Difference& first = comparison.differences.front();
    out["first"] = difference_json(first);
    out["first"]["stage"] =
        text_or_null(verify::look_at(first.kind, first.side, verify::category_of(first.name), first.step));
  }
  out["categories"] = ordered_json::array();
  for (const std::string& category : comparison.categories) {
    const verify::Summary& each = comparison.summaries.at(category);
    out["categories"].push_back(
        {{"name", category},
         {"names", each.names.size()},
         {"bitwise", each.bitwise},
         {"within", each.within},
         {"different", each.different},
         {"not_judged", each.not_judged},
         {"first_step", each.first_step ? ordered_json(*each.first_step) : ordered_json(nullptr)},
         {"worst_within", each.within ? number(each.worst) : ordered_json(nullptr)},
         {"worst_name", text_or_null(each.worst_name)}});
  }
  out["differences"] = ordered_json::array();
  for (const Difference& each : comparison.differences) out["differences"].push_back(difference_json(each));
  out["all_differences"] = comparison.all_differences;
  out["incomplete"] = comparison.incomplete;
  out["notes"] = comparison.notes;
  out["tolerances"] = ordered_json::array();
  for (const auto& [dtype, tolerance] : comparison.tolerances)
    out["tolerances"].push_back({{"dtype", dtype}, {"rtol", tolerance.rtol}, {"reason", tolerance.reason}});
  out["controls"] = ordered_json::array();
  for (const verify::Control& control : comparison.controls)
    out["controls"].push_back({{"name", control.tensor},
                               {"dtype", control.dtype},
                               {"index", control.index},
                               {"seen", control.fault.empty()}});
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
