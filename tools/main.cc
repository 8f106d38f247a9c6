// SPDX-License-Identifier: MIT
//
// The `lockstep` command. Everything it can do is in the table below.

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/command.h"

namespace {

using Setup = void (*)(CLI::App&, lockstep::CommandLine&);

constexpr Setup kCommands[] = {
    lockstep::setup_run,      lockstep::setup_diagnose, lockstep::setup_show,
    lockstep::setup_scenario, lockstep::setup_compare,
};

// What stands after "--" belongs to a program that is to be started, and is never read as ours.
std::vector<std::string> own_words(int argc, char** argv, lockstep::CommandLine& line) {
  std::vector<std::string> own;
  for (int i = argc - 1; i > 0; i--) own.emplace_back(argv[i]);  // CLI11 takes them last first
  for (size_t i = own.size(); i-- > 0;) {
    if (own[i] != "--") continue;
    line.has_dashes = true;
    line.after_dashes.assign(own.rend() - static_cast<std::ptrdiff_t>(i), own.rend());
    own.erase(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    break;
  }
  return own;
}

// What CLI11 complains of first need not be what is wrong: a word it does not know is.
std::string unknown_word(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = nullptr;
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    if (word == "--") return "";
    if (word.rfind("--", 0) == 0) {
      const std::string name = word.substr(0, word.find('='));
      if (!(command ? command : &app)->get_option_no_throw(name) && name != "--help" && name != "--version")
        return fmt::format("there is no option \"{}\"{}", name, command ? " of " + command->get_name() : "");
    } else if (!command) {
      std::string known;
      for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
        if (each->get_name() == word) command = each;
        known += (known.empty() ? "" : ", ") + each->get_name();
      }
      if (command || word[0] == '-') continue;
      return fmt::format("there is no command \"{}\"; known are {}", word, known);
    }
  }
  return "";
}

// An answer that nobody can read is no answer.
int with_output_written(int status) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
  fmt::print(stderr, "lockstep: standard output could not be written; see whether its disk is full\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lockstep: which rank hangs a NCCL job, at which call, and what it is doing there.", "lockstep");
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example:\n  lockstep run -- python train.py\n  lockstep diagnose lockstep-traces/<run>\n\n"
      "`lockstep COMMAND --help` shows more.");
  lockstep::CommandLine line;
  for (const Setup setup : kCommands) setup(app, line);
  try {
    app.parse(own_words(argc, argv, line));
  } catch (const CLI::Success& help) {
    return with_output_written(app.exit(help));
  } catch (const CLI::ParseError& error) {
    if (const std::string word = unknown_word(app, argc, argv); !word.empty()) {
      fmt::print(stderr, "lockstep: {}; see `lockstep --help`\n", word);
      return 2;
    }
    fmt::print(stderr, "lockstep: {}; see `lockstep --help`\n", error.what());
    return 2;
  }
  return with_output_written(line.exit_status);
}
