// SPDX-License-Identifier: MIT
//
// Jobs made by hand, in memory: what the ranks called, and when. Scenes speak of ranks 0..n-1 as written; the job may
// number them otherwise (a permutation), and every verdict must permute with it.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"
#include "tools/job/job.h"
#include "tools/judge/finding.h"
#include "tools/judge/rules.h"

namespace lockstep::test {

inline constexpr double kThreshold = 60;  // seconds

struct CallSpec {
  abi::Fn fn = abi::Fn::AllReduce;
  uint64_t count = 1024;
  uint8_t dtype = 7;  // float32
  int32_t redop = 0;  // sum
  int32_t peer = -1;  // root or peer, a rank of the communicator
  bool returned = true;
  int32_t result = 0;
  uint32_t group = 0;
};

class HandMadeJob {
 public:
  HandMadeJob(int ranks, std::vector<int> numbers);

  int size() const { return static_cast<int>(numbers_.size()); }
  int number(int rank) const { return numbers_[static_cast<size_t>(rank)]; }
  std::vector<int> numbers(const std::vector<int>& ranks) const;  // sorted

  // Time moves by hand; everything happens at the present time.
  void wait(double seconds) { now_ += seconds; }

  // A communicator of these ranks; its id is a hash of its name.
  void comm(const std::string& name, const std::vector<int>& ranks, trace::CommState state = trace::CommState::live,
            int nranks = 0);
  void call(int rank, const std::string& comm, CallSpec spec = {});
  void call_all(const std::string& comm, CallSpec spec = {}, int times = 1);
  void step(int rank, uint64_t step);
  void teardown(int rank, const std::string& comm, trace::CommState state);
  void sits_in(int rank, const std::string& function);  // a snapshot, now
  void dies(int rank, int signal);
  void vanishes(int rank);
  void exits(int rank, int status);
  void lose_trace(int rank) { lost_.push_back(rank); }
  void wrap(int rank, size_t keep);  // the ring holds only the last calls
  trace::TraceFile& file(int rank) { return *files_[static_cast<size_t>(rank)]; }
  const trace::CommInfo& info(int rank, const std::string& comm);

  // The last heartbeat of all that live is at the present time.
  std::vector<Process> processes() const;

 private:
  trace::Time time_of(int rank) const;
  trace::CommInfo& comm_of(int rank, const std::string& comm);
  std::vector<int> numbers_;
  std::vector<std::unique_ptr<trace::TraceFile>> files_;
  std::vector<int> lost_;
  std::map<int, bool> gone_;
  double now_ = 1000;
};

// A job whose ranks are all in the communicator "world"; numbered as they are counted, or otherwise.
HandMadeJob job_of(int ranks);
HandMadeJob job_of(const std::vector<int>& numbers);

// Loaded, matched, judged and explained.
struct Judged {
  std::unique_ptr<Run> run;
  Table table;
  std::unique_ptr<Evidence> evidence;
  Diagnosis diagnosis;

  const Finding& first() const { return diagnosis.findings.front(); }
  std::vector<int> culprits() const;
  std::vector<int> victims() const;
  std::string comm() const;
};
Judged judge_job(const HandMadeJob& job, size_t files_left_out = 0);

// Numberings of n ranks to try: as written, reversed, and a few shuffled ones.
std::vector<std::vector<int>> numberings(int n);

}  // namespace lockstep::test
