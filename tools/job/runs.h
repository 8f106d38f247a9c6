// SPDX-License-Identifier: MIT
//
// How the processes of a folder are told apart by run, before each run's ranks are worked out (ranks.cc).

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/job/job.h"

namespace lockstep {

using RunName = std::pair<std::string, uint32_t>;               // run id and restart
using ProcessesByRun = std::map<RunName, std::vector<size_t>>;  // indices

// Was this run id made up by a process because nobody gave it one?
bool is_made_up(const std::string& run_id);

// Runs that are parts of one because somebody started its ranks one by one become that one.
void join_started_by_hand(const std::vector<Process>& processes, ProcessesByRun& runs);

}  // namespace lockstep
