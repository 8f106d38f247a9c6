// SPDX-License-Identifier: MIT
//
// lockstep-train: reads the command line, learns which ranks it is, and trains as each of them.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

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

int run(const Options& options, const Launch& launch) {
  if (options.print_mesh) {
    if (launch.rank == 0) std::cout << Mesh(options.shape).text();
    return 0;
  }
  if (!options.save_init.empty()) {
    check_memory_to_save(options);
    if (launch.rank == 0) save_init(options.save_init, config_of(options), 0);
    return 0;
  }
  if (options.print_schedule) {
    if (launch.rank == 0)
      std::cout << draw(
          make_schedule(options.schedule, options.shape.pp, static_cast<int>(options.accum), options.virtual_stages));
    return 0;
  }
  check_memory(options, launch.here);
  if (!options.freeze.empty()) check_freeze(config_of(options));
  if (launch.rank == 0)
    for (const std::string& note : notes_on(options, launch))
      std::fprintf(stderr, "lockstep-train: %s\n", note.c_str());
  set_threads(options.threads);
  const Text text(options.data.empty() ? bundled_text() : options.data, options.seq, options.vocab, options.packed);
  if (!options.init.empty()) check_init(options.init, config_of(options));
  check_activation_patterns(options, config_of(options));
  if (!options.dump.empty()) check_dump_folder(options.dump);
  return run_ranks(launch, options,
                   [&](int rank, const ncclUniqueId& id) { return train_as(options, text, rank, id); });
}

}  // namespace

int main(int argc, char** argv) {
  bool tell = true;  // refusals are the same on all ranks, so one tells
  try {
    Options options = parse_options(argc, argv);
    const Launch launch = find_launch(options);
    tell = launch.rank == 0;
    complete_options(options, launch.world);
    return run(options, launch);
  } catch (const Refusal& refusal) {
    if (tell) std::fprintf(stderr, "lockstep-train: %s\n", refusal.what());
    return 2;
  }
}
