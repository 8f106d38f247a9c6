// SPDX-License-Identifier: MIT
//
// What player and judge both derive from a scenario: membership, the permutation and the shift.

#include "tools/scenario/scenario.h"

#include <algorithm>
#include <numeric>

namespace lockstep::scenario {

const std::vector<int>* Communicator::group_of(int rank) const {
  for (const std::vector<int>& group : groups)
    if (std::find(group.begin(), group.end(), rank) != group.end()) return &group;
  return nullptr;
}

const Communicator* Scenario::find(const std::string& name) const {
  for (const Communicator& c : communicators)
    if (c.name == name) return &c;
  return nullptr;
}

const std::vector<std::string>& frame_names() {
  static const std::vector<std::string> names = {
#define LOCKSTEP_FRAME(name) #name,
#include "tools/scenario/frames.def"
#undef LOCKSTEP_FRAME
  };
  return names;
}

void widen_to(Scenario& scenario, int ranks) {
  if (scenario.widen < 0) return;
  std::optional<std::vector<int>>& victims = scenario.expect.victims;
  const bool is_victim = victims && std::count(victims->begin(), victims->end(), scenario.widen);
  for (; scenario.ranks < ranks; scenario.ranks++) {
    scenario.communicators[0].groups[0].push_back(scenario.ranks);
    scenario.programs.push_back(scenario.programs[static_cast<size_t>(scenario.widen)]);
    if (is_victim) victims->push_back(scenario.ranks);
  }
}

namespace {

bool contains(const std::vector<Statement>& body, const std::vector<Verb>& verbs) {
  return std::any_of(body.begin(), body.end(), [&](const Statement& s) {
    return std::count(verbs.begin(), verbs.end(), s.verb) > 0 || contains(s.body, verbs);
  });
}

bool any_rank_does(const Scenario& scenario, const std::vector<Verb>& verbs) {
  return std::any_of(scenario.programs.begin(), scenario.programs.end(),
                     [&](const std::vector<Statement>& program) { return contains(program, verbs); });
}

}  // namespace

bool ends_processes(const Scenario& scenario) {
  // An error that a fault makes ends its rank, as an uncaught exception would.
  const auto ends = [](const Fault& fault) { return fault.action == "fail" || fault.action == "kill"; };
  if (std::any_of(scenario.faults.begin(), scenario.faults.end(), ends)) return true;
  return any_rank_does(
      scenario, {Verb::exit, Verb::quick_exit, Verb::abort, Verb::segv, Verb::kill, Verb::stop, Verb::kill_job, Verb::await_end});
}
bool asks_for_judge(const Scenario& scenario) { return any_rank_does(scenario, {Verb::judge}); }

std::string fault_setting(const Scenario& scenario, const std::vector<int>& world_rank, int shift) {
  std::string text;
  for (const Fault& fault : scenario.faults) {
    // Each agreed step in front is one all-reduce on every communicator the rank has at the start.
    const bool counts = std::all_of(fault.rest.begin(), fault.rest.end(), [](const std::string& part) {
      return part.rfind("fn=", 0) != 0 || part == "fn=AllReduce";
    });
    int64_t call = fault.call;
    for (const Communicator& c : scenario.communicators)
      if (counts && !c.later && c.group_of(fault.rank)) call += shift;
    text += (text.empty() ? "" : ";") + fault.action +
            ":rank=" + std::to_string(world_rank[static_cast<size_t>(fault.rank)]) + ",call=" + std::to_string(call);
    for (const std::string& part : fault.rest) text += "," + part;
  }
  return text;
}

namespace {

// splitmix64, written out because the standard library's distributions differ between implementations.
uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15ull;
  uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<int> permutation(uint64_t seed, int ranks) {
  std::vector<int> world(static_cast<size_t>(ranks));
  std::iota(world.begin(), world.end(), 0);
  if (seed == 0) return world;
  for (size_t i = world.size(); i > 1; i--) std::swap(world[i - 1], world[next_random(seed) % i]);
  return world;
}

uint64_t shifted_by(const Scenario& scenario, const std::string& comm, int shift) {
  const Communicator* c = scenario.find(comm);
  return c && !c->later ? static_cast<uint64_t>(shift) : 0;
}

}  // namespace lockstep::scenario
