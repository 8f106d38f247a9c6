// SPDX-License-Identifier: MIT
//
// How a rank that others wait for has left. When its peers had already waited the full threshold before it ended, the
// hang came first, and the end is somebody's reaction to it: then it counts as alive at that time. So does a rank that
// was ended by whoever ended the whole job.

#include <algorithm>
#include <string>

#include "tools/job/lookup.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kReaction = 12 * kSecond;  // ends this close after one another may be one reaction

using trace::CommState;
using trace::Time;

// When the last of the waiters ended; 0 = one still lives.
int64_t waiters_end(const Evidence& evidence, const Wait& wait) {
  int64_t last = 0;
  for (const size_t rank : wait.waiting) {
    const Life& life = evidence.life(rank);
    if (life.end == End::none) return 0;
    last = std::max(last, life.when.wall_ns);
  }
  return last;
}

// Did it leave only after its peers had already waited the full threshold?
bool hang_came_first(const Evidence& evidence, const Wait& wait, const Time& left, bool in_good_order) {
  if (left.wall_ns == 0 || left.wall_ns - wait.since.wall_ns < evidence.threshold_ns) return false;
  if (wait.age_ns < evidence.threshold_ns) return false;
  if (!in_good_order) return true;
  const int64_t others = waiters_end(evidence, wait);
  return others != 0 && others - left.wall_ns < kReaction;  // all wound up together: somebody stopped the job
}

// Was it ended by whoever ended the whole job, and not the first to go?
bool was_stopped(const Evidence& evidence, size_t rank) {
  if (evidence.outside) return true;
  const Life& life = evidence.life(rank);
  const bool asked = life.end == End::vanished || (life.end == End::signal && is_request_to_stop(life.code));
  if (!asked) return false;
  bool first = true;
  for (size_t other = 0; other < evidence.run.ranks.size(); other++) {
    const Life& its = evidence.life(other);
    if (its.end == End::none) return false;
    if (other != rank && its.end != End::clean && its.when.wall_ns + kHeadStart < life.when.wall_ns) first = false;
  }
  return !first;
}

}  // namespace

Departure departure_of(const Evidence& evidence, const Wait& wait, size_t rank) {
  const Life& life = evidence.life(rank);
  Departure departure;
  if (const Member* member = member_of(evidence.table.comms[wait.comm], rank);
      member && wait.what != Wait::What::init) {
    const CommState state = member->info->state;
    const bool torn_down =
        state == CommState::destroyed || state == CommState::finalized || state == CommState::aborted;
    const bool before_end = life.end == End::none || life.when.wall_ns > member->info->ended.wall_ns;
    if (torn_down && before_end && !hang_came_first(evidence, wait, member->info->ended, state != CommState::aborted)) {
      departure = {Kind::left_early, true, member->info->ended,
                   state == CommState::aborted ? "it had aborted that communicator"
                                               : "it had already torn that communicator down"};
      return departure;
    }
  }
  if (life.end == End::none) return departure;
  if (hang_came_first(evidence, wait, life.when, life.end == End::clean)) {
    departure.how = "it ended only after the hang: it " + end_in_words(life);
    return departure;
  }
  // Held up itself for the full threshold, it was given up by a watchdog or its own framework.
  const bool given_up = life.end == End::status || (life.end == End::signal && !is_struck(life));
  if (given_up && is_stuck(evidence, rank)) {
    departure.how = "it ended only after it had waited itself: it " + end_in_words(life);
    return departure;
  }
  if (life.end != End::clean && was_stopped(evidence, rank)) {  // with all the others
    departure.how = "it " + end_in_words(life);
    return departure;
  }
  departure = {life.end == End::clean ? Kind::left_early : Kind::died, true, life.when, "it " + end_in_words(life)};
  return departure;
}

std::vector<size_t> deaths_before(const Evidence& evidence, size_t rank) {
  const Life& life = evidence.life(rank);
  const bool by_itself = life.end == End::status || (life.end == End::signal && !is_struck(life));
  if (!by_itself || !life.time_known) return {};
  const std::string host = evidence.file(rank).header.host;
  std::vector<size_t> before;
  for (size_t other = 0; other < evidence.run.ranks.size(); other++) {
    const Life& its = evidence.life(other);
    if (!is_struck(its) || !its.time_known) continue;
    const int64_t apart = life.when.wall_ns - its.when.wall_ns;
    const int64_t needed = host == evidence.file(other).header.host ? kHeadStart : kClocksOfHosts;
    if (apart >= needed && apart <= kReaction) before.push_back(other);
  }
  return before;
}

}  // namespace lockstep
