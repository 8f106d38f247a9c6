// SPDX-License-Identifier: MIT
//
// The demo's command line.

#include "reference/demo/options.h"

#include <getopt.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "reference/demo/data_loader.h"

namespace demo {
namespace {

constexpr char kHelp[] = R"(usage: lockstep-demo [OPTIONS]

Trains a small character model with data-parallel ranks, one process each, that add up their gradients with
ncclAllReduce. One rank's share of the text is one batch short, so the training hangs at its last step, as real ones do.

  --text FILE       train on this text (a bundled one)
  --ranks N         processes, 2 to 64 (4)
  --steps N         steps of an epoch (as many as the text gives, at most 100)
  --batch N         samples per step and rank (32)
  --short-rank R    the rank whose share is one batch short (2)
  --drop-last       all ranks stop at the last step that all have data for: nothing hangs
  --exit-early      the short rank exits when its data is over, instead of waiting for the others

example: lockstep run --host --hang-seconds 3 --kill-on-hang -- lockstep-demo --ranks 6 --short-rank 4
)";

[[noreturn, gnu::format(printf, 1, 2)]] void refuse(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::fputs("lockstep-demo: ", stderr);
  std::vfprintf(stderr, format, args);
  std::fputc('\n', stderr);
  va_end(args);
  std::exit(2);
}

int number(const char* option, const char* text, int low, int high) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || stop != end || value < low || value > high)
    refuse("--%s expects a number from %d to %d, not \"%s\"", option, low, high, text);
  return value;
}

// The bundled text lies beside the program, in the build tree as in an installed one.
std::string bundled_text() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n <= 0) refuse("cannot read /proc/self/exe to find the bundled text; name a text with --text FILE");
  const std::filesystem::path program(std::string(self, static_cast<size_t>(n)));
  return program.parent_path().parent_path() / "share/lockstep/demo/keepers.txt";
}

// Steps are limited by the text; without --steps its length decides.
void fit_to_text(Options& options) {
  const size_t size = read_text(options.text_path).size();
  const int most = steps_that_fit(size, options.ranks, options.batch);
  if (most < 2)
    refuse("%s has %zu bytes, too few for two steps of %d samples on %d ranks; take a longer text or a smaller --batch",
           options.text_path.c_str(), size, options.batch, options.ranks);
  if (options.steps > most)
    refuse("%s has %zu bytes, enough for %d steps of %d samples on %d ranks, not for --steps %d",
           options.text_path.c_str(), size, most, options.batch, options.ranks, options.steps);
  if (options.steps == 0) options.steps = most < kMaxDefaultSteps ? most : kMaxDefaultSteps;
}

}  // namespace

std::string read_text(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) refuse("cannot read the text %s: %s", path.c_str(), std::strerror(errno));
  std::string text;
  char piece[65536];
  for (size_t n; (n = std::fread(piece, 1, sizeof piece, file)) > 0;) text.append(piece, n);
  if (std::ferror(file)) refuse("cannot read the text %s: %s", path.c_str(), std::strerror(errno));
  std::fclose(file);
  if (text.empty()) refuse("the text %s is empty", path.c_str());
  return text;
}

Options parse_options(int argc, char** argv) {
  enum { text, ranks, steps, batch, short_rank, drop_last, exit_early, help };
  static const option known[] = {{"text", required_argument, nullptr, text},
                                 {"ranks", required_argument, nullptr, ranks},
                                 {"steps", required_argument, nullptr, steps},
                                 {"batch", required_argument, nullptr, batch},
                                 {"short-rank", required_argument, nullptr, short_rank},
                                 {"drop-last", no_argument, nullptr, drop_last},
                                 {"exit-early", no_argument, nullptr, exit_early},
                                 {"help", no_argument, nullptr, help},
                                 {}};
  Options options;
  opterr = 0;
  for (int got; (got = getopt_long(argc, argv, "+:", known, nullptr)) != -1;) {
    switch (got) {
      case text:
        options.text_path = optarg;
        break;
      case ranks:
        options.ranks = number("ranks", optarg, 2, kMaxRanks);
        break;
      case steps:
        options.steps = number("steps", optarg, 2, 1'000'000);
        break;
      case batch:
        options.batch = number("batch", optarg, 1, 65'536);
        break;
      case short_rank:
        options.short_rank = number("short-rank", optarg, 0, kMaxRanks - 1);
        break;
      case drop_last:
        options.drop_last = true;
        break;
      case exit_early:
        options.exit_early = true;
        break;
      case help:
        std::fputs(kHelp, stdout);
        std::exit(0);
      case ':':
        refuse("%s expects a value; see --help", argv[optind - 1]);
      default:
        refuse("%s is not an option; see --help", argv[optind - 1]);
    }
  }
  if (optind < argc) refuse("nothing was expected after the options, but there is \"%s\"; see --help", argv[optind]);
  if (options.short_rank < 0) options.short_rank = options.ranks > 2 ? 2 : options.ranks - 1;
  if (options.short_rank >= options.ranks)
    refuse("--short-rank %d is not one of the %d ranks, which count from 0", options.short_rank, options.ranks);
  if (options.text_path.empty()) options.text_path = bundled_text();
  fit_to_text(options);
  return options;
}

}  // namespace demo
