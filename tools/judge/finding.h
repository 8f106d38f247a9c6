// SPDX-License-Identifier: MIT
//
// What a diagnosis consists of. The judge makes these values, and text and JSON both print this one list, so that they
// cannot disagree.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interpose/trace/reader.h"
#include "tools/job/match.h"

namespace lockstep {

// The kinds the judge of this version gives; docs/findings.md says of each what it means and how it is told apart.
enum class Kind {
  missing_call,
  left_early,
  died,
  op_mismatch,
  count_mismatch,
  dtype_mismatch,
  redop_mismatch,
  root_mismatch,
  wrong_communicator,
  order_inversion,
  cross_communicator_cycle,
  p2p_cycle,
  p2p_unmatched,
  p2p_size_mismatch,
  group_mismatch,
  concurrent_use,
  init_incomplete,
  teardown_order,
  duplicate_device,
  stalled_together,
  not_started,
  host_blocked,
  comm_error,
  environment_differs,
  group_size,
  duplicate_data,
  missing_trace,
  straggler,
  idle,
  result_divergence,
};

enum class Severity { error, warning, note };
enum class Confidence { certain, likely, possible };
enum class Verdict { healthy, hung, mismatch, failed, slow, unknown };

struct Frame {
  std::string function;  // empty = not known
  std::string file;      // empty = no debug information
  uint32_t line = 0;
  std::string module;   // file name of the program or library
  uint64_t offset = 0;  // in the module
};

struct ThreadStack {
  std::string thread;         // "main", else the thread's name or number
  std::string origin;         // "now": a snapshot; "call": recorded when the pending call was made
  std::vector<Frame> frames;  // innermost first, noise cut
};

// A message, as one of its two ends names it.
struct Message {
  size_t rank = 0;             // that end: index into Run::ranks
  std::optional<size_t> peer;  // the other end
  bool sends = false;
  uint64_t number = 0;  // on that edge, from 0
};

struct Finding {
  Kind kind = Kind::idle;
  Severity severity = Severity::error;
  Confidence confidence = Confidence::certain;
  std::vector<std::string> doubts;  // why not certain, one clause each
  bool may_hang = true;             // calls that differ: can what follows be held up by it?
  bool begun = true;                // calls that differ: is nothing stuck in front of them?
  bool hangs = false;               // somebody waits for ever because of it

  std::vector<size_t> culprits, victims;  // indices into Run::ranks
  std::vector<int> traceless;             // culprits that left no trace: world ranks
  std::optional<size_t> comm;             // index into Table::comms
  std::optional<uint64_t> seq;            // number of the collective on it
  std::optional<Message> message;         // where it is about a message instead
  std::string op;                         // empty = not known
  std::optional<Signature> expected;
  std::map<size_t, std::optional<Signature>> actual;  // per odd rank; none = it made no such call
  std::optional<uint64_t> agreed_seq;                 // last row all members launched alike
  std::string agreed_op;
  std::optional<uint64_t> step;
  std::string sample;
  std::vector<size_t> cycle;  // ranks, each waiting for the next

  trace::Time since;                  // when the first victim began to wait, or when it happened
  int64_t pending_ns = 0;             // how long the longest waiter had waited by its own last sign of life
  std::optional<uint64_t> stuck_seq;  // mismatches: where the job hangs because of it
  std::optional<size_t> joined;       // of the making of a communicator: how many ranks are known to have called it
  std::string detail;                 // what the rule saw beyond the fields above, one clause

  // Filled in by explain().
  std::map<size_t, ThreadStack> stacks;  // culprits, and one victim to compare with
  std::string summary, next;
};

struct Diagnosis {
  Verdict verdict = Verdict::unknown;
  std::vector<Finding> findings;     // root cause first
  std::vector<std::string> remarks;  // what the reader should know besides, one sentence each
  int64_t threshold_ns = 0;          // what counted as hung
};

const char* kind_name(Kind kind);       // "missing-call"
std::vector<std::string> kind_names();  // of all kinds
const char* severity_name(Severity severity);
const char* confidence_name(Confidence confidence);
const char* verdict_name(Verdict verdict);

// 0 healthy or slow, 1 hung, mismatch or failed, 3 unknown.
int exit_status_of(Verdict verdict);

}  // namespace lockstep
