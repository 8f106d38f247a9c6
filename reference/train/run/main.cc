// SPDX-License-Identifier: MIT
//
// lockstep-train: reads the command line, learns which ranks it is, and trains as each of them.

#include <cstdio>
#include <iostream>

#include "reference/train/run/communicators.h"
#include "reference/train/run/launch.h"
#include "reference/train/run/options.h"

int main(int argc, char** argv) {
  bool tell = true;  // refusals are the same on all ranks, so one tells
  try {
    train::Options options = train::parse_options(argc, argv);
    const train::Launch launch = train::find_launch(options);
    tell = launch.rank == 0;
    train::complete_options(options, launch.world);
    if (options.print_mesh) {
      if (launch.rank == 0) std::cout << train::Mesh(options.shape).text();
      return 0;
    }
    return train::run_ranks(launch, options, [&](int rank, const ncclUniqueId& id) {
      const train::Mesh mesh(options.shape);
      const train::Communicators comms = train::make_communicators(id, rank, mesh, options.hybrid_shard);
      return 0;
    });
  } catch (const train::Refusal& refusal) {
    if (tell) std::fprintf(stderr, "lockstep-train: %s\n", refusal.what());
    return 2;
  }
}
