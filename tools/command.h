// SPDX-License-Identifier: MIT
//
// How a subcommand joins `lockstep`: it adds itself to the command line and says what to do when it is chosen. One file
// a subcommand; main.cc holds the list.

#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep {

struct CommandLine {
  bool has_dashes = false;                // was there a "--"?
  std::vector<std::string> after_dashes;  // what stood after it
  int exit_status = 0;  // set by the command: 0 well, 1 the job is not, 2 bad usage or input, 3 not judged
};

void setup_run(CLI::App& app, CommandLine& line);
void setup_diagnose(CLI::App& app, CommandLine& line);
void setup_show(CLI::App& app, CommandLine& line);
void setup_scenario(CLI::App& app, CommandLine& line);

}  // namespace lockstep
