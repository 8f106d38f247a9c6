// SPDX-License-Identifier: MIT
//
// A scene made by hand, and the verdict it must get: played under several numberings of its ranks and with some agreed
// calls in front; the verdict must follow.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/tools/hand_made.h"

namespace lockstep::test {

using Scene = std::function<void(HandMadeJob&)>;

struct Expected {
  Verdict verdict = Verdict::healthy;
  std::optional<Kind> kind;   // none = no findings
  std::vector<int> culprits;  // as the scene numbers them
  std::string comm;
  std::optional<uint64_t> seq;  // before the shift
  std::optional<std::vector<int>> victims;
};

inline constexpr int kShift = 3;

// `shift` agreed calls come first on the world communicator.
inline void check(int ranks, const Scene& scene, const Expected& expected) {
  for (const std::vector<int>& numbers : numberings(ranks))
    for (const int shift : {0, kShift}) {
      HandMadeJob job = job_of(numbers);
      job.call_all("world", {}, shift);
      scene(job);
      const Judged judged = judge_job(job);
      const Diagnosis& diagnosis = judged.diagnosis;
      std::string what = "shift " + std::to_string(shift) + ", numbers";
      for (const int number : numbers) what += " " + std::to_string(number);
      SCOPED_TRACE(what + "; " + (diagnosis.findings.empty() ? "no finding" : judged.first().summary));
      EXPECT_STREQ(verdict_name(diagnosis.verdict), verdict_name(expected.verdict));
      ASSERT_EQ(diagnosis.findings.empty(), !expected.kind.has_value());
      if (!expected.kind) continue;
      EXPECT_STREQ(kind_name(judged.first().kind), kind_name(*expected.kind));
      EXPECT_EQ(judged.culprits(), job.numbers(expected.culprits));
      if (!expected.comm.empty()) {
        EXPECT_EQ(judged.comm(), expected.comm);
      }
      if (expected.seq) {
        const uint64_t wanted = *expected.seq + (expected.comm == "world" ? static_cast<uint64_t>(shift) : 0);
        ASSERT_TRUE(judged.first().seq.has_value());
        EXPECT_EQ(*judged.first().seq, wanted);
      }
      if (expected.victims) {
        EXPECT_EQ(judged.victims(), job.numbers(*expected.victims));
      }
    }
}

// All but `absent` make one more call, and wait long.
inline void all_but(HandMadeJob& job, const std::vector<int>& absent, double seconds = kThreshold + 5) {
  for (int rank = 0; rank < job.size(); rank++)
    if (std::find(absent.begin(), absent.end(), rank) == absent.end()) job.call(rank, "world");
  job.wait(seconds);
  for (const int rank : absent) job.sits_in(rank, "data_loader_next");
}

}  // namespace lockstep::test
