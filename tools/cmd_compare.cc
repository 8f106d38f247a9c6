// SPDX-License-Identifier: MIT
//
// `lockstep compare A B`: did two trainings compute the same?

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "tools/command.h"
#include "tools/compare/report.h"
#include "tools/printable.h"
#include "tools/report/report.h"
#include "tools/say.h"

namespace lockstep {
namespace {

struct CompareWords {
  std::string a, b;
  double rtol = -1;
  int64_t step = -1;
  bool json = false, all = false;
  verify::CompareOptions options;
};

CLI::Validator relative_error() {
  return number_that([](double error) { return error >= 0 && error < 1; }, "a relative error from 0 to below 1");
}

CLI::Validator step_number() {
  return CLI::Validator(
      [](std::string& text) {
        const bool good =
            !text.empty() && text.size() < 19 && text.find_first_not_of("0123456789") == std::string::npos;
        return good ? std::string() : "expected the number of a step, 0 or more, found \"" + text + "\"";
      },
      "");
}

// A line that is written over and over; for people who watch.
void show_progress(verify::CompareOptions& options) {
  if (!isatty(STDERR_FILENO)) return;
  options.progress = [](int64_t step, size_t done, size_t of) {
    say("\r\033[Kstep {} ({} of {})", step, done + 1, of);
  };
}

int run_compare(CompareWords& words) {
  if (words.rtol >= 0) words.options.rtol = words.rtol;
  if (words.step >= 0) words.options.step = words.step;
  show_progress(words.options);
  const Result<verify::Comparison> comparison = verify::compare_folders(words.a, words.b, words.options);
  if (words.options.progress) say("\r\033[K");
  if (!comparison) {
    say("lockstep compare: {}\n", printable(comparison.error()));
    return 2;
  }
  const std::string report =
      words.json ? comparison_json(*comparison) : comparison_text(*comparison, words.all, wants_colour(STDOUT_FILENO));
  std::fwrite(report.data(), 1, report.size(), stdout);
  return comparison->status == verify::Status::same ? 0 : comparison->status == verify::Status::different ? 1 : 3;
}

}  // namespace

void setup_compare(CLI::App& app, CommandLine& line) {
  auto words = std::make_shared<CompareWords>();
  CLI::App* command =
      app.add_subcommand("compare", "Say whether two trainings computed the same, and where they first differ");
  command->add_option("A", words->a, "Dump folder of the reference")->required();
  command->add_option("B", words->b, "Dump folder to compare with it, of any layout")->required();
  command->add_flag("--json", words->json, "Print JSON (docs/compare-schema.json)");
  command
      ->add_option("--rtol", words->rtol,
                   "Relative error allowed; default by dtype: F64 1e-12, F32 1e-5, F16 2e-3, BF16 5e-2")
      ->check(relative_error())
      ->type_name("X");
  command->add_option("--step", words->step, "This step only")->check(step_number())->type_name("N");
  command
      ->add_option("--only", words->options.only,
                   "Tensors and metrics of this name, with * ? [] as in file names, or with this in their name")
      ->type_name("PATTERN");
  command->add_flag("--sum-partials", words->options.sum_partials,
                    "Add up tensors that ranks hold as summands, instead of not judging them");
  command->add_flag("--all", words->all, "List all differences, not the first few");
  command->footer(
      "Example:\n  lockstep compare dumps/one-rank dumps/tp2-pp2\n  lockstep compare A B --only 'grad/*' --step 1\n\n"
      "Exit status: 0 the same, 1 different, 2 bad usage or unusable dumps, 3 evidence is missing and the rest is the "
      "same. "
      "The folders: docs/dump-format.md.");
  command->callback([words, &line] { line.exit_status = run_compare(*words); });
}

}  // namespace lockstep
