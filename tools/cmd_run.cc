// SPDX-License-Identifier: MIT
//
// `lockstep run [options] [--] PROGRAM...`: start a program with the shim and look after it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string_view>

#include "interpose/shim/settings.h"
#include "tools/command.h"
#include "tools/run/launch.h"
#include "tools/run/supervisor.h"
#include "tools/say.h"

namespace lockstep {
namespace {

int run_program(const RunOptions& options) {
  Result<Launch> launch = prepare_launch(options);
  if (!launch) {
    say("lockstep run: {}\n", launch.error());
    return 2;
  }
  say("lockstep: traces in {}\n", launch->folder);
  return supervise(*launch, options);
}

// For people; docs/shim.md has the same table.
int print_settings() {
  size_t widest = 0;
  for (const shim::Setting& s : shim::kSettings) widest = std::max(widest, std::string_view(s.name).size());
  fmt::print("Settings of the shim, by environment variable, with their defaults:\n\n");
  for (const shim::Setting& s : shim::kSettings)
    fmt::print("  {:<{}}  {:<22}  {}\n", s.name, widest, *s.standard ? s.standard : "-", s.meaning);
  return 0;
}

}  // namespace

void setup_run(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<RunOptions>();
  auto hang_seconds = std::make_shared<double>(0);
  CLI::App* command = app.add_subcommand("run", "Start a program with the shim, and print the verdict if it hangs");
  command->add_option("--dir", options->folder, "Folder for the traces; default: a new one in ./lockstep-traces");
  command->add_flag("--host", options->host, "Run on the host runtime: NCCL and CUDA on this machine's CPUs");
  command->add_flag("--kill-on-hang", options->kill_on_hang,
                    "After a bad verdict end the whole job, with exit status 1");
  command
      ->add_option("--hang-seconds", *hang_seconds,
                   "A call pending longer than this hangs; default 60, fractions allowed")
      ->check(sane_seconds());
  auto settings = std::make_shared<bool>(false);
  command->add_flag("--settings", *settings, "Print the shim's settings and end");
  command->footer(
      "The program and its arguments follow, best after \"--\".\n\nExample:\n  lockstep run -- mpirun -n 4 ./train\n  "
      "mpirun -n 4 lockstep run --dir traces -- ./train\n"
      "  lockstep run --host --hang-seconds 5 --kill-on-hang -- ./train\n\n"
      "Exit status: the program's (128 + signal if one ended it), 1 after --kill-on-hang ended it, 2 bad usage.");
  command->prefix_command();
  command->callback([command, options, hang_seconds, settings, &line] {
    if (*settings) {
      line.exit_status = print_settings();
      return;
    }
    options->command = command->remaining();
    if (line.has_dashes && !options->command.empty()) options->command.push_back("--");
    options->command.insert(options->command.end(), line.after_dashes.begin(), line.after_dashes.end());
    if (*hang_seconds > 0) options->hang_seconds = *hang_seconds;
    line.exit_status = run_program(*options);
  });
}

}  // namespace lockstep
