// SPDX-License-Identifier: MIT
//
// A machine that makes jobs and breaks them. A random legal schedule (one common order of collectives, messages and
// groups over nested communicators, of which each rank does its part) gets no fault, one, or two; it is executed with
// NCCL's semantics (streams, launch-ahead, host waits, groups that complete as a unit) up to a cut at some instant; and
// what the traces would then hold is handed to the judge, with some of it lost. What happened is known here, so every
// verdict can be checked: nobody is ever blamed who did nothing, and what could be found is found.

#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"
#include "tools/finding.h"
#include "tools/job.h"

namespace lockstep::test {

inline constexpr double kSimThreshold = 60;  // seconds; what counts as hung in simulated jobs
inline constexpr int kNoStream = -1;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  bool chance(double p) { return real(0, 1) < p; }
  double real(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) / 9007199254740992.0;
  }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(below(static_cast<int>(from.size())))];
  }

 private:
  std::mt19937_64 engine_;  // the same numbers on every machine
};

// --- schedules

enum class Do : uint8_t {
  compute,  // `seconds` on the host
  call,     // a collective or a message
  group_start,
  group_end,
  sync,  // the host waits for `stream`
  init,  // joins communicator `comm`
  destroy,
  foreign,  // work of somebody else on `stream`, for `seconds`; for ever where that is infinite
  sleep,    // for ever, in the program's own code
  leave,    // exit status 0
  die,      // `peer` = signal
};

struct Act {
  Do what = Do::compute;
  int comm = -1;
  abi::Fn fn = abi::Fn::none;
  uint64_t count = 0;
  uint8_t dtype = 7;
  int redop = 0;
  int peer = -1;  // root or peer, a rank of the communicator
  double seconds = 0;
  int stream = 0;
  int event = 0;  // place in the common order
  bool faulty = false;
};

struct SimComm {
  std::vector<int> ranks;
  int stream = 0;
  int parent = -1;  // split from that one, by all its ranks at once, as ...
  int split = 0;    // ... its split of this number, from 1
  int color = 0;
};

struct Schedule {
  int ranks = 0;
  std::vector<SimComm> comms;              // [0] is world
  std::vector<std::vector<Act>> programs;  // by rank
  int queue_depth = 1024;                  // launches a stream takes before the host is held in the call
  bool stays = false;                      // at its end a rank waits for work instead of ending
};

// Lengthy: several times as many events, and none of count 0.
Schedule random_schedule(Random& random, bool lengthy = false);

// --- faults

enum class FaultKind : uint8_t {
  none,
  stays_away,
  leaves,
  dies,
  other_count,
  other_dtype,
  other_redop,
  other_root,
  other_op,
  zero_count,
  skips,
  repeats,
  wrong_comm,
  swaps,
  drops_message,
  extra_message,
  message_size,
  both_send_first,
  never_completes,
  never_starts,
  held_by_device,
};
const char* fault_name(FaultKind kind);
const std::vector<FaultKind>& all_faults();

struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = -1;
  int event = -1;             // where in the common order
  std::set<int> may_blame;    // whom a verdict may name
  std::set<int> if_doubtful;  // whom it may name besides when it says that it is not certain
  std::vector<Kind> kinds;    // what it may be called; empty = anything
  bool sharp = false;         // with all the evidence exactly `may_blame` must be named
};

// Breaks the schedule; nullopt when it has no place for this fault.
std::optional<Fault> inject(Random& random, FaultKind kind, Schedule& schedule);

// --- execution

struct Loss {
  bool snapshots = false, device_states = false;
  size_t ring = 0;         // calls each ring holds; 0 = all
  std::set<int> no_trace;  // ranks
  bool any() const { return snapshots || device_states || ring || !no_trace.empty(); }
};

struct Execution {
  double end = 0;                  // when nothing moved any more
  std::vector<bool> finished;      // per rank: its program is over
  std::vector<bool> reached;       // per event of the common order: some rank began it
  std::vector<bool> waits;         // per rank: held in a call, a host wait, or with unfinished work at the cut
  std::vector<double> last_moved;  // per rank: when its program last went on
  std::vector<Process> processes;  // what the traces hold
};

// What happens at the cut.
enum class Ending : uint8_t {
  looked_at,  // somebody asks for a verdict
  stopped,    // all ranks are asked to end
  torn_down,  // watchdogs abort some of those that have waited for long, then a launcher ends the rest
};

// `cut` = when the job is looked at. Mismatched calls complete or hang, by the seed. `threads`: the ranks are threads
// of one process, with one trace.
Execution execute(const Schedule& schedule, uint64_t seed, double cut, const Loss& loss,
                  Ending ending = Ending::looked_at, bool threads = false);

}  // namespace lockstep::test
