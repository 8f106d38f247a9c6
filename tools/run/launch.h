// SPDX-License-Identifier: MIT
//
// What must be right before a program is started under the shim: the folder, the libraries beside this command, the
// environment. Everything that can go wrong is found here, before anything runs.

#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interpose/trace/result.h"

namespace lockstep {

struct RunOptions {
  std::string folder;  // empty = a new one under ./lockstep-traces
  bool host = false;   // run on the host runtime instead of the machine's NCCL and CUDA
  bool kill_on_hang = false;
  std::optional<double> hang_seconds;
  std::vector<std::string> command;
};

struct Launch {
  std::string folder;   // absolute, exists, can be written
  std::string program;  // what execv gets
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  // to be set on top of the present one
};

Result<Launch> prepare_launch(const RunOptions& options);

// The run's name: equal in all supervisors of one mpirun, srun or torchrun.
std::string name_of_run();

}  // namespace lockstep
