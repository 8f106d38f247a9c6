// SPDX-License-Identifier: MIT

#include "verify/compare/gaps.h"

#include <algorithm>
#include <utility>

#include "verify/compare/order.h"

namespace lockstep::verify {
namespace {

std::string not_compared(std::vector<std::string> categories) {
  if (categories.empty()) return "";
  std::sort(categories.begin(), categories.end(), computed_before);
  std::string text = ": ";
  for (size_t i = 0; i < categories.size(); i++)
    text += (i == 0 ? "" : i + 1 == categories.size() ? " and " : ", ") + categories[i];
  return text + (categories.size() == 1 ? " was not compared" : " were not compared");
}

}  // namespace

std::string steps_text(const std::set<int64_t>& steps) {
  std::string text;
  for (auto at = steps.begin(); at != steps.end();) {
    const int64_t first = *at;
    int64_t last = first;
    while (++at != steps.end() && *at == last + 1) last = *at;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return (steps.size() == 1 ? "step " : "steps ") + text;
}

std::vector<std::string> Gaps::sentences() const {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const auto& [why, by_category] : gaps_) {
    std::map<std::set<int64_t>, std::vector<std::string>> alike;  // categories that miss the same steps
    for (const auto& [category, steps] : by_category) {
      std::vector<std::string>& categories = alike[steps];
      if (!category.empty()) categories.push_back(category);
    }
    for (const auto& [steps, categories] : alike)
      found.emplace_back(*steps.begin(), steps_text(steps) + ": " + why + not_compared(categories));
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> sentences;
  for (auto& [step, sentence] : found) sentences.push_back(std::move(sentence));
  return sentences;
}

}  // namespace lockstep::verify
