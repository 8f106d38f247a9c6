// SPDX-License-Identifier: MIT
//
// How a subcommand joins `lockstep`: it adds itself to the command line and says what to do when it is chosen. One file
// a subcommand; main.cc holds the list.

#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

namespace lockstep {

struct CommandLine {
  bool has_dashes = false;                // was there a "--"?
  std::vector<std::string> after_dashes;  // what stood after it
  int exit_status = 0;  // set by the command: 0 well, 1 the job is not, 2 bad usage or input, 3 not judged
};

// A number that fits; nan, which the parser takes for one, fits nothing. `what`: what was expected, in words.
inline CLI::Validator number_that(bool (*fits)(double), const std::string& what, const std::string& name = "") {
  return CLI::Validator(
      [fits, what](std::string& text) {
        char* end = nullptr;
        const double number = std::strtod(text.c_str(), &end);
        const bool good = !text.empty() && *end == '\0' && fits(number);
        return good ? std::string() : "expected " + what + ", found \"" + text + "\"";
      },
      name);
}

// A number of seconds somebody may mean: not the age of the universe.
inline CLI::Validator sane_seconds() {
  return number_that([](double seconds) { return seconds >= 0.001 && seconds <= 31'536'000; },
                     "a number of seconds from 0.001 to 31536000 (a year)", "SECONDS");
}

inline void add_debug_dir(CLI::App& command, std::string& folder) {
  command
      .add_option(
          "--debug-dir", folder,
          "Where else to look for debug information: DIR/.build-id/ab/cdef.debug, or DIR/NAME or DIR/NAME.debug")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory);
}

void setup_run(CLI::App& app, CommandLine& line);
void setup_diagnose(CLI::App& app, CommandLine& line);
void setup_show(CLI::App& app, CommandLine& line);
void setup_scenario(CLI::App& app, CommandLine& line);
void setup_compare(CLI::App& app, CommandLine& line);

}  // namespace lockstep
