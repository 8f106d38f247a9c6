// SPDX-License-Identifier: MIT
//
// lockstep-train: reads the command line, learns which ranks it is, and trains as each of them.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "reference/train/kernels/kernels.h"
#include "reference/train/parallel/schedule_simulate.h"
#include "reference/train/run/build.h"
#include "reference/train/run/launch.h"
#include "reference/train/run/loop.h"
#include "reference/train/run/memory_needed.h"
#include "reference/train/run/notes.h"
#include "reference/train/run/options.h"
#include "reference/train/run/text.h"
#include "reference/train/run/weights.h"

namespace {

using namespace train;

// A rank that cannot go on ends the process: its peers would wait for it.
[[noreturn]] void give_up(const std::exception& error, int status) {
  std::fprintf(stderr, "lockstep-train: %s\n", error.what());
  std::fflush(nullptr);
  std::_Exit(status);
}

int train_as(const Options& options, const Text& text, int rank, const ncclUniqueId& id) {
  try {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    Training(options, text, rank, device, id).run();
    return 0;
  } catch (const Refusal& refusal) {
    give_up(refusal, 2);
  } catch (const std::exception& error) {
    give_up(error, 1);
  }
}

// With the times of --fake-compute-us, in nanoseconds; without any, all passes of one length.
std::string drawn_schedule(const Options& o) {
  const Schedule schedule = make_schedule(o.schedule, o.shape.pp, static_cast<int>(o.accum), o.virtual_stages);
  const auto nanoseconds = [&](size_t pass) { return std::llround(o.fake_compute_us[pass] * 1000); };
  if (o.fake_compute_us.empty() || nanoseconds(0) + nanoseconds(1) + nanoseconds(2) == 0) return draw(schedule);
  return draw(schedule, {nanoseconds(0), nanoseconds(1), nanoseconds(2)}, 0.001);
}

void print(const Options& options) {
  if (options.print_mesh) std::cout << Mesh(options.shape).text();
  if (options.print_schedule) std::cout << drawn_schedule(options);
}

// What asks for something else than a training.
bool is_no_training(const Options& options) {
  return options.print_mesh || options.print_schedule || !options.save_init.empty();
}

int do_without_training(const Options& options) {
  print(options);
  if (options.save_init.empty()) return 0;
  check_memory_to_save(options);
  save_init(options.save_init, config_of(options), 0);
  return 0;
}

// What only the options decide is refused on all ranks alike, and one tells. Files and machines may be others on each
// rank: each tells. The machine's memory comes first, since what follows lists all parameters.
int run(const Options& options, const Launch& launch, bool& tell) {
  if (is_no_training(options)) return launch.rank == 0 ? do_without_training(options) : 0;
  tell = true;
  check_memory(options, launch.here);
  tell = launch.rank == 0;
  if (!options.freeze.empty()) check_freeze(config_of(options));
  check_activation_patterns(options, config_of(options));
  tell = true;
  if (launch.rank == 0)
    for (const std::string& note : notes_on(options, launch))
      std::fprintf(stderr, "lockstep-train: %s\n", note.c_str());
  set_threads(options.threads);
  const Text text(options.data.empty() ? bundled_text() : options.data, options.seq, options.vocab, options.packed);
  check_evaluation(options, text);
  if (!options.init.empty()) check_init(options.init, config_of(options));
  if (!options.dump.empty()) check_dump_folder(options.dump);
  return run_ranks(launch, options,
                   [&](int rank, const ncclUniqueId& id) { return train_as(options, text, rank, id); });
}

// A full disk under a redirected output is not success.
int with_output_written(int status) {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout) return status;
  std::fprintf(stderr, "lockstep-train: standard output could not be written; see whether its disk is full\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  bool tell = true;
  int rank = 0;
  try {
    Options options = parse_options(argc, argv);
    const Launch launch = find_launch(options);
    rank = launch.rank;
    tell = rank == 0;
    complete_options(options, launch.world);
    return with_output_written(run(options, launch, tell));
  } catch (const Refusal& refusal) {
    const std::string who = rank == 0 ? "" : "rank " + std::to_string(rank) + ": ";
    if (tell) std::fprintf(stderr, "lockstep-train: %s%s\n", who.c_str(), refusal.what());
    return 2;
  }
}
