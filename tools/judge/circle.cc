// SPDX-License-Identifier: MIT
#include "tools/judge/circle.h"

#include <algorithm>
#include <cstdint>

namespace lockstep {

std::vector<OnCircle> first_circle(const std::vector<std::vector<Edge>>& next) {
  enum class Seen : uint8_t { no, on_the_way, done };
  std::vector<Seen> seen(next.size());
  struct Step {
    size_t at = 0, taken = 0;
  };
  for (size_t start = 0; start < next.size(); start++) {
    std::vector<Step> way;
    if (seen[start] == Seen::no) way.push_back({start, 0});
    while (!way.empty()) {
      Step& step = way.back();
      seen[step.at] = Seen::on_the_way;
      if (step.taken == next[step.at].size()) {
        seen[step.at] = Seen::done;
        way.pop_back();
        continue;
      }
      const size_t to = next[step.at][step.taken++].to;
      if (seen[to] == Seen::no) way.push_back({to, 0});
      if (seen[to] != Seen::on_the_way) continue;
      std::vector<OnCircle> circle;
      auto from = std::find_if(way.begin(), way.end(), [&](const Step& s) { return s.at == to; });
      for (; from != way.end(); ++from) circle.push_back({from->at, next[from->at][from->taken - 1].rank});
      return circle;
    }
  }
  return {};
}

}  // namespace lockstep
