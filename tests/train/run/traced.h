// SPDX-License-Identifier: MIT
//
// The calls of a training, read from the shim's trace of the program as it ran under `lockstep run`.

#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace train::test {

using Words = std::vector<std::string>;

struct Total {
  int64_t calls = 0, elements = 0;
  bool operator==(const Total&) const = default;
  void add(int64_t more_calls, int64_t each) {
    calls += more_calls;
    elements += more_calls * each;
  }
};
std::ostream& operator<<(std::ostream& out, const Total& total);

// (communicator, function, dtype) of one step, of a rank. Elements are the count of the call: a rank's part of an
// all-gather or reduce-scatter. What a rank sends to itself, in an all-to-all, is "Send to itself", and its other end
// "Recv from itself": no wire carries it.
using Calls = std::map<std::tuple<std::string, std::string, std::string>, Total>;

// Two steps with these options; the calls of the second, by rank. `lockstep diagnose` must end with `verdict`.
std::vector<Calls> calls_of_ranks(const Words& options, int verdict = 0);
// The same where all ranks must make the same calls.
Calls calls_of_all(const Words& options, int verdict = 0);
// On how many streams a rank has calls in that step, by rank.
std::vector<size_t> streams_of_ranks(const Words& options);

}  // namespace train::test
