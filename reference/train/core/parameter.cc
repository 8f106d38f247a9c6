// SPDX-License-Identifier: MIT

#include "reference/train/core/parameter.h"

#include <algorithm>

namespace train {

Parameter::Elements overlap(int64_t begin, int64_t count, const Parameter::Elements& ranges, bool outside) {
  Parameter::Elements inside, gaps;
  int64_t done = 0;
  for (const auto& range : ranges) {
    const int64_t first = std::clamp<int64_t>(range[0] - begin, 0, count),
                  last = std::clamp<int64_t>(range[1] - begin, 0, count);
    if (first == last) continue;
    if (first > done) gaps.push_back({done, first});
    inside.push_back({first, last});
    done = last;
  }
  if (done < count) gaps.push_back({done, count});
  return outside ? gaps : inside;
}

}  // namespace train
