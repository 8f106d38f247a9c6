// SPDX-License-Identifier: MIT
//
// A verdict that all is well, though a rank has said that it hangs, is not the last word: the traces are read again.
// No clock here: who reads is told how long to wait, and does not.

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>

#include "tests/bench/made_traces.h"
#include "tests/demo/process.h"
#include "tools/run/verdict.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Waits = std::vector<std::chrono::milliseconds>;

// Reads until a verdict stands; `read` is told how often it has been asked before.
Waits read_with(Retries& retries, const std::function<bool(size_t)>& read) {
  Waits waits;
  while (const auto wait = retries.after(read(waits.size()))) waits.push_back(*wait);
  return waits;
}

TEST(Retries, EachWaitsTwiceAsLongAndTheFifthIsTheLast) {
  Retries retries;
  retries.begin(true);
  EXPECT_EQ(read_with(retries, [](size_t) { return false; }), (Waits{1s, 2s, 4s, 8s, 16s}));
  EXPECT_EQ(read_with(retries, [](size_t) { return false; }), Waits{});
}

TEST(Retries, ABadVerdictStands) {
  for (const size_t told_at : {0u, 1u, 5u}) {
    Retries retries;
    retries.begin(true);
    EXPECT_EQ(read_with(retries, [&](size_t before) { return before == told_at; }).size(), told_at);
  }
}

TEST(Retries, AQuietLookIsNotRepeated) {
  Retries retries;
  retries.begin(false);
  EXPECT_EQ(read_with(retries, [](size_t) { return false; }), Waits{});
}

TEST(Retries, TheNextRequestHasAllOfThem) {
  Retries retries;
  retries.begin(true);
  read_with(retries, [](size_t before) { return before == 3; });
  retries.begin(true);
  EXPECT_EQ(read_with(retries, [](size_t) { return false; }), (Waits{1s, 2s, 4s, 8s, 16s}));
}

// One verdict on the folder as it is now, by a process of its own.
bool judge_now(const std::string& folder) {
  VerdictProcess process;
  process.start(folder, VerdictStyle::one_line, 60s);
  for (;;) {
    if (const std::optional<bool> bad = process.poll_result()) return *bad;
    struct pollfd ended = {process.descriptor(), POLLIN, 0};
    poll(&ended, 1, 1000);
  }
}

// The traces of a hung job come into the folder after two looks at it.
TEST(Retries, WhatTheTracesTellLateIsFound) {
  const TemporaryFolder folder;
  const std::string traces = folder.path("");
  const bench::MadeTraces made(folder.path(""), 8, 40);
  Retries retries;
  retries.begin(true);
  size_t looks = 0;
  const Waits waits = read_with(retries, [&](size_t before) {
    looks++;
    if (before == 2) made.write(traces);
    return judge_now(traces);
  });
  EXPECT_EQ(waits, (Waits{1s, 2s}));
  EXPECT_EQ(looks, 3u);
}

}  // namespace
}  // namespace lockstep::test
