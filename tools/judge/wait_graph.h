// SPDX-License-Identifier: MIT
//
// Who is held up by what: the graph of waits, and what follows from a cause in it. What findings are made of that is
// said in rule_absent.cc and rule_circles.cc.
//
// A rank that a wait misses is a root cause unless it is itself held up in another wait; then the blame moves on to
// those that one misses, and so on. What remains is ranks that wait for nobody, or a circle.

#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "tools/judge/flow.h"
#include "tools/judge/rules.h"

namespace lockstep {

// What a rank does that others wait for.
enum class Stance {
  free,    // it is in code of its own and could call
  held,    // it waits itself, behind something that is stuck
  own,     // it waits for the device, and all it has enqueued with NCCL is done: for work of its own
  hidden,  // it waits, or may be waiting, for something in which nobody is seen to be missing
};

struct Graph {
  const Evidence& evidence;
  const std::vector<Wait>& waits;
  const Explained& explained;
  const Flow& empty;            // all operations, nothing stuck yet
  std::vector<Sits> sits;       // by rank
  std::vector<Stance> stances;  // by rank
};

Graph graph_of(const Evidence& evidence, const std::vector<Wait>& waits, const Explained& explained,
               const std::vector<Finding>& mismatches, const Flow& empty);

// Waits that hold a rank by themselves, not through what is on its streams: it sits in the making of a communicator, or
// in something of which nobody is missing.
bool holds_directly(const Wait& wait, size_t rank);

// The making of a communicator of which nobody can tell who is missing.
bool is_open_to_all(const Wait& wait);

// Waits that nobody with a trace is missing from, and those that miss somebody who is free or gone.
struct Cause {
  size_t wait = 0;
  std::vector<size_t> culprits;
};
std::vector<Cause> causes_of(const Graph& graph);

// Everything that comes down to a set of causes: the waits whose missing ranks are held up by them, again and again.
class Downstream {
 public:
  explicit Downstream(const Graph& graph) : graph_(graph), flow_(graph.empty), taken_(graph.waits.size()) {}

  void add(size_t wait);
  void add(const Finding& mismatch) { flow_.block(mismatch); }
  void settle();
  const Flow& held() const { return flow_; }
  bool has(size_t wait) const { return taken_[wait]; }

 private:
  bool follows(const Wait& wait) const;
  bool is_directly_held(size_t rank) const;

  const Graph& graph_;
  Flow flow_;
  std::vector<bool> taken_;
};

// The first circle that a walk along the waits finds: each rank is missed by a wait, and held up by the next.
struct Circle {
  std::vector<size_t> ranks;
  std::vector<const Wait*> through;
};
Circle find_circle(const Graph& graph, const std::vector<size_t>& among);

// Ranks that have sat in a call or a host wait for so long, with something of theirs held up.
std::vector<size_t> stuck_in(const Graph& graph, const Flow& held, int64_t at_least_ns);

// A message of a group whose other end is held up by that very group; nullptr = there is none.
const Wait* odd_message(const Graph& graph, const std::vector<size_t>& among);

// --- rule_circles.cc ---
// Old waits that come down to no cause: a circle, or something that cannot be seen.
Finding blame_circle(const Graph& graph, const std::vector<size_t>& among);
Finding blame_hidden(const Graph& graph, const std::vector<size_t>& among);

// --- blame.cc ---
// What every finding about a wait says.
Finding blank_finding(const Evidence& evidence, const Wait& wait);
void add_unique(std::vector<size_t>& to, const std::vector<size_t>& ranks, const std::vector<size_t>& except);
// One finding per way of leaving; who followed somebody's death has one of its own. `age` is that of the oldest wait
// that comes down to this one.
std::vector<Finding> blame(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& culprits,
                           const std::vector<size_t>& victims, int64_t age);
Finding blame_traceless(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& victims);
Finding blame_nobody(const Evidence& evidence, const Wait& wait, const std::vector<size_t>& victims);

}  // namespace lockstep
