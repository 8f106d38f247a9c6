// SPDX-License-Identifier: MIT
//
// The rules: small pure functions from the table to facts and findings. They read values only, take every time from the
// traces, and never look at the machine they run on, so a copied folder, a test and a simulator all judge alike.
//
// Two kinds of evidence. A *mismatch* is a row whose calls differ: it blames the minority, and a tie blames nobody. A
// *wait* is something some ranks have begun and others have not: it blames those it waits for, unless they themselves
// are held up in another wait. So the root causes are ranks that wait for nobody, or cycles; all others are victims.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tools/job/agreed.h"
#include "tools/job/job.h"
#include "tools/job/life.h"
#include "tools/job/match.h"
#include "tools/judge/finding.h"

namespace lockstep {

class Flow;

struct Evidence {
  const Run& run;
  const Table& table;
  std::vector<Life> lives;  // by process
  int64_t threshold_ns;
  bool outside;                     // the whole run was stopped from outside
  std::vector<trace::Time> worked;  // by rank: its last call that communicates; a watchdog's polling is none
  std::vector<trace::Time> moved;   // by rank: when something it had enqueued was last seen to start or complete
  uint64_t kept_rows;               // rows before the first open one that are on record whatever was left out

  const Life& life(size_t rank) const { return lives[run.ranks[rank].process]; }
  const trace::TraceFile& file(size_t rank) const { return run.process_of(rank).file; }
  Stopped stopped(size_t rank) const { return how_stopped(run.process_of(rank)); }
  // For how long a rank has made no call that communicates, and none that it made has gone on, by its own clock.
  int64_t quiet(size_t rank) const {
    return life(rank).seen.mono_ns - std::max(worked[rank].mono_ns, moved[rank].mono_ns);
  }
};

struct Wait {
  enum class What { collective, init, split, p2p };
  What what = What::collective;
  size_t comm = 0;                     // index into Table::comms; for a split the parent
  uint64_t seq = 0;                    // row, split number, or edge number
  int edge_from = -1, edge_to = -1;    // of a message: ranks of the communicator
  bool answered = false;               // of a message: the other end made its half, and ended before it was done
  std::vector<size_t> waiting;         // ranks that began it
  std::vector<size_t> absent;          // ranks that did not, with a trace
  std::vector<size_t> candidates;      // when it is not certain who is absent: ranks that may be
  size_t traceless = 0;                // members that did not, as far as anybody knows: no trace
  std::vector<int> traceless_numbers;  // their world ranks, where certain
  trace::Time since;                   // when the longest waiter began
  int64_t age_ns = 0;                  // how long it had waited by its own last sign of life
};

// --- departure.cc ---
struct Departure {
  Kind kind = Kind::missing_call;
  bool final = false;  // it can never come any more
  trace::Time when;
  std::string how;  // one clause; empty when it is simply alive
};
Departure departure_of(const Evidence& evidence, const Wait& wait, size_t rank);
// Ranks that were struck down before this one ended by itself, by a watchdog's hand or on request, and so near that it
// may be a reaction. Empty where it was struck as well, ended well, or no clock tells the order.
std::vector<size_t> deaths_before(const Evidence& evidence, size_t rank);

// --- rule_mismatch.cc ---
// The first row of each communicator whose calls differ, and calls with count 0 where others pass n.
std::vector<Finding> find_mismatches(const Evidence& evidence);
// Whose turn has never come, on all of the streams: what is stuck in front of them is not their doing.
void note_turns(const Evidence& evidence, std::vector<Finding>& mismatches);
// Calls that differ and nothing comes of it: a message that is cut, or what waits itself for its turn.
bool holds_nobody_up(const Finding& finding);

// --- rule_waits.cc ---
// Everything that some ranks have begun and others have not, however young; and, behind those, what holds ranks up
// although nobody is missing from it and none of these waits and mismatches accounts for it.
std::vector<Wait> find_waits(const Evidence& evidence, const std::vector<Finding>& mismatches);
// How long a member has been waiting for a row by its own clocks; 0 = it does not wait for it.
int64_t waited(const Evidence& evidence, const Member& member, uint64_t seq, trace::Time* since);
// What the newest snapshot says of a rank: is one of its threads inside NCCL or in a wait for the device? A process
// that somebody has stopped is in neither: it is held up by that.
enum class Sits { waiting, elsewhere, unknown };
Sits where_it_sits(const Evidence& evidence, size_t rank);

// In such a wait, or inside an NCCL call, and without any call that communicates for the full threshold.
bool is_stuck(const Evidence& evidence, size_t rank);

// --- blame.cc ---
// Which operation is waited for: the row, the message or the call that makes a communicator.
void set_op(const Evidence& evidence, const Wait& wait, Finding& finding);

// --- rule_absent.cc ---
// Communicators whose calls differ, and from which row on: that accounts for what happens on them from there.
using Explained = std::map<size_t, uint64_t>;
// Who is to blame for the waits that are old enough, or whose absent ranks can never come; root causes only.
std::vector<Finding> blame_waits(const Evidence& evidence, const std::vector<Wait>& waits, const Explained& explained,
                                 std::vector<Finding>& mismatches);

// --- rule_deaths.cc ---
// Ranks that died although nobody waits for them yet. `found` holds what is known already.
std::vector<Finding> find_deaths(const Evidence& evidence, const std::vector<Wait>& waits,
                                 const std::vector<Finding>& found);
// Ends that followed a death that is named are told with it. A finding of those who followed names nobody else (blame).
void fold_followers(const Evidence& evidence, std::vector<Finding>& findings);

// --- rule_states.cc ---
// Calls all have made and some have not started, launched circles, and teardown in different orders. `found` holds what
// the waits have led to.
std::vector<Finding> find_device_states(const Evidence& evidence, const std::vector<Wait>& waits,
                                        const std::vector<Finding>& mismatches, const std::vector<Finding>& found);
// The first error of NCCL's own, for jobs in which nothing else is found.
std::vector<Finding> find_errors(const Evidence& evidence);

// --- rule_stuck_orders.cc ---
// What all have launched and none gets through: on their streams it stands in opposite orders.
std::optional<Finding> find_stuck_orders(const Evidence& evidence, const Flow& flow);

// --- rule_orders.cc ---
// Two communicators in different orders where it holds nothing up; `found` holds what is known already.
std::vector<Finding> find_orders(const Evidence& evidence, const std::vector<Finding>& found);

// --- rule_digests.cc ---
std::vector<Finding> find_divergence(const Evidence& evidence);

// --- rule_setup.cc ---
// Ranks that share a device, where the making of their communicator failed.
std::vector<Finding> find_shared_devices(const Evidence& evidence);
// How the job was set up and used; warnings.
std::vector<Finding> find_setup(const Evidence& evidence);

// --- rule_quiet.cc ---
// Nobody is missing anywhere: are all stalled in the same place, idle, or is one merely late?
std::vector<Finding> find_quiet(const Evidence& evidence, const std::vector<Wait>& waits);
// Ranks without a trace, when that could change the answer.
std::vector<Finding> find_missing_traces(const Evidence& evidence, const std::vector<Finding>& found);

// --- judge.cc ---
struct JudgeOptions {
  std::optional<int64_t> threshold_ns;  // else what the job itself was set to
  uint64_t kept_rows = AgreedCalls::kKeptRows;
};
Evidence gather(const Run& run, const Table& table, const JudgeOptions& options);
Diagnosis judge(const Run& run, const Table& table, const JudgeOptions& options, size_t files_left_out);

}  // namespace lockstep
