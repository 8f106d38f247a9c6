// SPDX-License-Identifier: MIT
//
// What the user may choose about the demo training. Everything is checked here, before any process is started, so that
// a wrong option costs one sentence and not a hang of its own.

#pragma once

#include <string>

namespace demo {

struct Options {
  std::string text_path;  // the training text; empty until resolved: the one that comes with the demo
  int ranks = 4;
  int steps = 0;            // optimizer steps of a full shard; 0: as many as the text gives, at most kMaxDefaultSteps
  int batch = 32;           // samples per step and rank
  int short_rank = -1;      // whose shard is one batch short; -1: rank 2, or the last where there are fewer
  bool drop_last = false;   // every rank stops at the step the shortest shard allows
  bool exit_early = false;  // the short rank leaves when its data is over, instead of waiting for the others
};

inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxDefaultSteps = 100;

// Reads the command line, fills in what depends on the text and returns the options; on a mistake prints one sentence
// and exits with status 2, on --help prints the help and exits with status 0.
Options parse_options(int argc, char** argv);

// The text of options.text_path; exits like parse_options when it cannot be read.
std::string read_text(const std::string& path);

}  // namespace demo
