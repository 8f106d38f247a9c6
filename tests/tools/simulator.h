// SPDX-License-Identifier: MIT
//
// A machine that makes jobs and breaks them. A random legal schedule (one common order of collectives, messages and
// groups over nested communicators, of which each rank does its part) gets no fault, one, or two; it is executed with
// NCCL's semantics (streams, launch-ahead, host waits, groups that complete as a unit) up to a cut at some instant; and
// what the traces would then hold is handed to the judge, with some of it lost. What happened is known here, so every
// verdict can be checked: nobody is ever blamed who did nothing, and what could be found is found.
//
// Every kind of finding has faults that bring it about; with all the evidence kind and ranks must be right:
//
//   missing-call, p2p-unmatched, init-incomplete   stays_away (by where it stops), init_fails, held by skips and drops
//   left-early, died                               leaves, dies
//   op-, count-, dtype-, redop-, root-mismatch     other_op, other_count, zero_count, other_dtype, other_redop,
//   other_root p2p-size-mismatch, p2p-cycle, group-mismatch   message_size, both_send_first, uneven_groups
//   order-inversion, cross-communicator-cycle      inverts_with_waits, inverts_on_one_stream, inverts_harmlessly,
//   crosses wrong-communicator, teardown-order             wider_comm, teardown_crossed stalled-together, not-started,
//   host-blocked    never_completes, never_starts, held_by_device comm-error, duplicate-device call_fails,
//   shares_device environment-differs, group-size                other_environment, two_worlds duplicate-data,
//   concurrent-use                 same_samples, two_threads result-divergence, missing-trace other_result, no_trace
//   straggler, idle                                late, nothing_to_do
//
// Faults that shift all later calls (skips, repeats, wrong_comm, swaps, drops_message, extra_message) look like many
// things; there the first finding must be one of those, and name nobody else. What cannot be planted here are the lines
// on the way to a finding: stacks, symbols and the loading of files, which have tests of their own.

#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"
#include "tools/job/job.h"
#include "tools/judge/finding.h"

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
  sync,        // the host waits for `stream`
  init,        // joins communicator `comm`
  destroy,     // of `comm`; with `peer` 1 it comes back when all members have called it
  fails,       // a call that comes back with the error `peer` and has done nothing
  init_fails,  // the making of `comm` comes back with the error `peer`; with `count` 1 when all members have come
  foreign,     // work of somebody else on `stream`, for `seconds`; for ever where that is infinite
  sleep,       // for ever, in the program's own code
  leave,       // exit status `count`
  die,         // `peer` = signal
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

  bool operator==(const Act&) const = default;
};

struct SimComm {
  std::vector<int> ranks;
  int stream = 0;
  int parent = -1;  // split from that one, by all its ranks at once, as ...
  int split = 0;    // ... its split of this number, from 1
  int color = 0;
};

// What the records are to hold besides, once the job is over: values that no run of calls brings about.
struct Planted {
  enum class What : uint8_t { two_threads, environment, samples, digests, devices };
  What what = What::environment;
  int rank = -1, other = -1;  // whose value is odd; for samples and devices the two that share one
  int comm = 0;
};

struct Schedule {
  int ranks = 0;
  std::vector<SimComm> comms;              // [0] is world
  std::vector<std::vector<Act>> programs;  // by rank
  int queue_depth = 1024;                  // launches a stream takes before the host is held in the call
  bool stays = false;                      // at its end a rank waits for work instead of ending
  std::vector<Planted> planted;
};

// Lengthy: several times as many events, and none of count 0.
Schedule random_schedule(Random& random, bool lengthy = false);

// --- faults

#define LOCKSTEP_SIM_FAULTS(X)                                                                                       \
  X(none)                                                                                                            \
  X(stays_away)                                                                                                      \
  X(leaves)                                                                                                          \
  X(dies)                                                                                                            \
  X(init_fails) /* one rank ends, or never comes */                                                                  \
  X(other_count)                                                                                                     \
  X(other_dtype) X(other_redop) X(other_root) X(other_op)      /* one call differs */                                \
      X(zero_count) X(skips) X(repeats) X(wrong_comm) X(swaps) /* later calls are one off */                         \
      X(drops_message) X(extra_message) X(message_size) X(both_send_first) X(uneven_groups)         /* messages */   \
      X(never_completes) X(never_starts) X(held_by_device)                                          /* the device */ \
      X(inverts_with_waits) X(inverts_on_one_stream) X(inverts_harmlessly) X(crosses) X(wider_comm) /* circles */    \
      X(teardown_crossed) X(call_fails) X(shares_device) X(other_environment) X(two_worlds) X(same_samples)          \
          X(two_threads) X(other_result) /* set up or used wrongly */                                                \
      X(late) X(nothing_to_do)           /* look-alikes */                                                           \
      X(no_trace)                        /* stays away, and its trace is lost */

enum class FaultKind : uint8_t {
#define LOCKSTEP_SIM_NAME(name) name,
  LOCKSTEP_SIM_FAULTS(LOCKSTEP_SIM_NAME)
#undef LOCKSTEP_SIM_NAME
};
const char* fault_name(FaultKind kind);
const std::vector<FaultKind>& all_faults();

struct Fault {
  FaultKind kind = FaultKind::none;
  int rank = -1;
  int event = -1;               // where in the common order
  int comm = -1;                // on which
  std::set<int> parties;        // whose calls must be on record for it to be seen that they differ
  std::set<int> may_blame;      // whom a verdict may name
  std::set<int> if_doubtful;    // whom it may name besides when it says that it is not certain
  std::vector<Kind> kinds;      // what it may be called, with all of `may_blame` named
  std::vector<Kind> blameless;  // or that, with nobody named
  std::set<int> shown;          // ranks that a warning or note must speak of
  bool sharp = false;           // with all the evidence the first finding must be right in kind and names
  bool shifts = false;          // ... in kind and in some of the names: what follows has many looks
  bool shows = false;           // nobody waits for it, and it is to be found all the same
  bool beside = false;          // some finding must be right, and need not be the first
  bool alone = false;           // where ranks are threads, or a second fault is near, it is something else
  double looked_at = 0;         // of the threshold, after the end of all movement; 0 = any time
};

// Breaks the schedule; nullopt when it has no place for this fault.
std::optional<Fault> inject(Random& random, FaultKind kind, Schedule& schedule);

// --- simulator_scenes.cc: those that take several ranks, or that only the records show
bool is_scene(FaultKind kind);
std::optional<Fault> inject_scene(Random& random, FaultKind kind, Schedule& schedule);

// --- execution

struct Loss {
  bool snapshots = false, device_states = false;
  size_t ring = 0;         // calls each ring holds; 0 = all
  std::set<int> no_trace;  // ranks
  bool any() const { return snapshots || device_states || ring || !no_trace.empty(); }
};

struct Execution {
  double end = 0;                      // when nothing moved any more
  std::vector<bool> finished;          // per rank: its program is over
  std::vector<std::set<int>> reached;  // per event of the common order: the ranks that began it
  std::vector<bool> waits;             // per rank: held in a call, a host wait, or with unfinished work at the cut
  std::vector<int> done_to;            // per rank: the first event of the common order that is not behind it
  std::vector<double> last_moved;      // per rank: when its program last went on
  bool planted = true;                 // all that was to be planted in the records found its place
  std::vector<Process> processes;      // what the traces hold
};

// --- simulator_records.cc: what the traces hold
uint64_t sim_comm_id(int comm);
trace::TraceFile new_file(int rank, int ranks);
void add_snapshot(trace::TraceFile& file, const char* function);
void lose(trace::TraceFile& file, const Loss& loss);
// One file for all ranks: one clock, one ring, handles and threads of their own. `ended`: all of them have.
trace::TraceFile merged(std::vector<trace::TraceFile>& files, bool ended);
// False where there is no place for it.
bool plant(const Planted& what, std::vector<trace::TraceFile>& files);

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
