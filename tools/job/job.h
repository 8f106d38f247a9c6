// SPDX-License-Identifier: MIT
//
// From a folder of trace files to a job: runs, their processes, and the ranks in them.
//
// A trace file describes a process; a verdict speaks of ranks. Which rank a process is, is not always written in one
// place, so it is worked out in the order of design.md, "Rank identity": the launcher's environment, else the rank in
// the largest communicator, else nothing but host and pid. One process may hold several ranks (a thread a device, or
// ncclCommInitAll); then each rank owns some of the communicators of that process.
//
// A folder may hold several runs: a restarted job, or a trainer beside an inference server. They are told apart by the
// run's name and restart number, and where those are equal by two processes claiming one rank while sharing no
// communicator. The newest run is judged; the others are listed.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "interpose/trace/reader.h"
#include "interpose/trace/result.h"

namespace lockstep {

struct Process {
  trace::TraceFile file;
  trace::Liveness liveness = trace::Liveness::elsewhere;
  std::map<uint32_t, uint64_t> messages_left_out;  // by communicator; see agreed.h
  char state = 0;                                  // of a process that is alive here, as the kernel says; 0 = not known
};

struct Rank {
  int number = -1;              // world rank; -1 = nobody knows, say host and pid
  size_t process = 0;           // index into Run::processes
  std::vector<uint32_t> comms;  // serials of its communicators in that process's file
  std::vector<uint32_t> tids;   // its threads; empty = all threads of the process
};

struct Run {
  std::string id;
  uint32_t restart = 0;
  int64_t opened_wall_ns = 0;  // of its first process
  std::vector<Process> processes;
  std::vector<Rank> ranks;         // by number, unnumbered ones last
  int world_size = -1;             // -1 = not known
  std::vector<int> missing;        // world ranks without a trace
  std::vector<std::string> notes;  // clashes and the like, one sentence each

  const Process& process_of(size_t rank) const { return processes[ranks[rank].process]; }
};

struct Job {
  std::string folder;
  std::vector<Run> runs;              // oldest first; the last is judged
  std::vector<std::string> left_out;  // files that could not be used, one sentence each
};

// Every trace in the folder and its sub-folders. An error (no folder, no traces) is one sentence for the user.
Result<Job> load_job(const std::string& folder);

// The part of load_job that needs no files: sorts processes into runs and ranks.
std::vector<Run> assemble_runs(std::vector<Process> processes);

// What is not in the verdict: files that could not be used, and parts of the others; a sentence each.
std::vector<std::string> what_was_left_out(const Job& job, const Run& run);

// "rank 2", or "host a, pid 17" when the rank is not known.
std::string rank_name(const Run& run, size_t rank);

// "0-3,5,7-9"
std::string number_ranges(std::vector<int> numbers);

}  // namespace lockstep
