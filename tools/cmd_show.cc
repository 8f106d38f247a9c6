// SPDX-License-Identifier: MIT
//
// `lockstep show FILE`: what is in one trace, for people and as JSON. Judges nothing. (Tensor dumps: show/dump.cc.)

#include <cstdio>
#include <filesystem>
#include <memory>

#include "tools/command.h"
#include "tools/printable.h"
#include "tools/say.h"
#include "tools/show/dump.h"
#include "tools/show/trace.h"

namespace lockstep {
namespace {

using trace::TraceFile;

int show(const ShowOptions& options) {
  if (is_tensor_file(options.file)) return show_tensor_file(options.file, options.json);
  if (std::error_code ignored; std::filesystem::is_directory(options.file, ignored)) {
    say("lockstep show: {}: is a folder; name one file of it, or use `lockstep diagnose` for all of its traces\n",
        printable(options.file));
    return 2;
  }
  Result<TraceFile> file = trace::read_trace(options.file);
  if (!file) {
    say("lockstep show: {}\n", printable(file.error()));
    return 2;
  }
  Symbolizer symbolizer(options.debug_dir);
  if (options.json) {
    const std::string text = show_trace_as_json(*file, options, symbolizer);
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  Run alone;
  alone.processes.push_back({*file, trace::look_alive(*file), {}});
  show_trace_as_text(*file, lives_of(alone).front(), options, symbolizer);
  return 0;
}

}  // namespace

void setup_show(CLI::App& app, CommandLine& line) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* command = app.add_subcommand("show", "Print what is in a trace file or a tensor dump");
  command->add_option("FILE", options->file, "A trace (*.lstrace), or tensors (*.safetensors)")->required();
  command->add_option("--calls", options->calls, "So many of the last calls and marks; 20 unless said")
      ->check(CLI::Validator(
          [](std::string& text) {
            const bool good =
                !text.empty() && text.size() <= 15 && text.find_first_not_of("0123456789") == std::string::npos;
            return good ? std::string() : "expected a whole number of calls, 0 or more, found \"" + text + "\"";
          },
          "CALLS"));
  command->add_flag("--all", options->all, "All calls and marks");
  command->add_flag("--modules", options->modules, "The module map, too");
  command->add_flag("--json", options->json, "Print JSON");
  add_debug_dir(*command, options->debug_dir);
  command->footer(
      "Example:\n  lockstep show lockstep-traces/20260101-120000-4711/a.4712.8813.lstrace --calls 50\n"
      "  lockstep show dumps/step000003/rank00000.safetensors");
  command->callback([options, &line] { line.exit_status = show(*options); });
}

}  // namespace lockstep
