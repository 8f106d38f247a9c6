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
