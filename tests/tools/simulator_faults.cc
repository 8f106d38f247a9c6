// SPDX-License-Identifier: MIT
//
// Faults: what one rank does other than the common order says, and whom a verdict may name for it. Between two ranks
// nobody can say which of the two is wrong; there a verdict may name either, but must not be certain.

#include <signal.h>

#include <algorithm>
#include <limits>

#include "tests/tools/simulator.h"

namespace lockstep::test {
namespace {

using abi::Fn;

bool is_message(const Act& act) { return act.what == Do::call && (act.fn == Fn::Send || act.fn == Fn::Recv); }
bool is_collective_act(const Act& act) { return act.what == Do::call && !is_message(act) && act.count > 0; }

const std::vector<Kind> kDiffer = {Kind::op_mismatch, Kind::count_mismatch, Kind::dtype_mismatch, Kind::redop_mismatch,
                                   Kind::root_mismatch};
const std::vector<Kind> kAbsent = {Kind::missing_call, Kind::left_early, Kind::p2p_unmatched};
// The making of a communicator that lists no members may close a circle, too.
const std::vector<Kind> kCircles = {Kind::order_inversion, Kind::cross_communicator_cycle, Kind::p2p_cycle,
                                    Kind::group_mismatch, Kind::init_incomplete};

std::vector<Kind> both(std::vector<Kind> a, const std::vector<Kind>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Breaker {
 public:
  Breaker(Random& random, Schedule& schedule) : random_(random), schedule_(schedule) {}

  std::optional<Fault> inject(FaultKind kind) {
    fault_.kind = kind;
    for (int tries = 0; tries < 8; tries++) {
      fault_.rank = random_.below(schedule_.ranks);
      if (apply(kind)) return fault_;
    }
    return std::nullopt;
  }

 private:
  std::vector<Act>& program() { return schedule_.programs[static_cast<size_t>(fault_.rank)]; }
  const std::vector<int>& members(int comm) const { return schedule_.comms[static_cast<size_t>(comm)].ranks; }

  // A random act of the rank that is such a one.
  template <class Test>
  Act* find(const Test& test) {
    std::vector<size_t> places;
    for (size_t i = 0; i < program().size(); i++)
      if (test(program()[i])) places.push_back(i);
    if (places.empty()) return nullptr;
    at_ = random_.pick(places);
    fault_.event = program()[at_].event;
    fault_.comm = program()[program()[at_].what == Do::group_start ? at_ + 1 : at_].comm;
    return &program()[at_];
  }
  void insert(Act act, size_t at) {
    act.event = fault_.event;
    act.faulty = true;
    program().insert(program().begin() + static_cast<std::ptrdiff_t>(at), act);
  }
  void erase(size_t at) { program().erase(program().begin() + static_cast<std::ptrdiff_t>(at)); }
  void others_of(int comm) {
    for (const int rank : members(comm))
      if (rank != fault_.rank) fault_.if_doubtful.insert(rank);
  }

  bool apply(FaultKind kind) {
    switch (kind) {
      case FaultKind::none:
        return true;
      case FaultKind::stays_away:
        return stop({Do::sleep}, {Kind::missing_call, Kind::p2p_unmatched, Kind::init_incomplete});
      case FaultKind::leaves:
        return stop({Do::leave}, {Kind::left_early});
      case FaultKind::dies: {
        Act act{Do::die};
        act.peer = random_.chance(0.5) ? SIGKILL : SIGSEGV;
        return stop(act, {Kind::died});
      }
      case FaultKind::other_count:
      case FaultKind::other_dtype:
      case FaultKind::other_redop:
      case FaultKind::other_root:
      case FaultKind::other_op:
        return change(kind);
      case FaultKind::zero_count:
      case FaultKind::skips:
      case FaultKind::repeats:
      case FaultKind::wrong_comm:
        return shift(kind);
      case FaultKind::swaps:
        return swap_two();
      case FaultKind::drops_message:
      case FaultKind::extra_message:
      case FaultKind::message_size:
        return spoil_message(kind);
      case FaultKind::both_send_first:
        return both_send_first();
      case FaultKind::never_completes:
        return never_completes();
      case FaultKind::never_starts:
      case FaultKind::held_by_device:
        return hold(kind);
      default:
        return false;  // a scene
    }
  }

  bool stop(Act act, std::vector<Kind> kinds) {
    if (!find([](const Act& a) { return a.what == Do::call || a.what == Do::init || a.what == Do::group_start; }))
      return false;
    const Act& before = program()[at_];
    // Who is to join a later communicator is written nowhere, unless it is split from one that exists.
    fault_.sharp =
        before.what != Do::init || before.comm == 0 || schedule_.comms[static_cast<size_t>(before.comm)].parent >= 0;
    insert(act, at_);
    fault_.may_blame = {fault_.rank};
    fault_.kinds = std::move(kinds);
    return true;
  }

  bool change(FaultKind kind) {
    Act* act = find([&](const Act& a) {
      if (!is_collective_act(a)) return false;
      if (kind == FaultKind::other_root) return abi::has_role(a.fn, abi::ArgRole::root);
      return kind != FaultKind::other_redop || abi::has_role(a.fn, abi::ArgRole::redop);
    });
    if (!act) return false;
    act->faulty = true;
    if (kind == FaultKind::other_count) act->count = act->count * 2 + 3, fault_.kinds = {Kind::count_mismatch};
    if (kind == FaultKind::other_dtype) act->dtype = act->dtype == 7 ? 6 : 7, fault_.kinds = {Kind::dtype_mismatch};
    if (kind == FaultKind::other_redop) act->redop = act->redop == 3 ? 1 : 3, fault_.kinds = {Kind::redop_mismatch};
    if (kind == FaultKind::other_root) act->peer = 1, fault_.kinds = {Kind::root_mismatch};
    if (kind == FaultKind::other_op) {
      act->fn = act->fn == Fn::AllGather ? Fn::AllReduce : Fn::AllGather;
      act->peer = -1, act->redop = 0;
      fault_.kinds = {Kind::op_mismatch};
    }
    if (members(act->comm).size() > 2) fault_.may_blame = {fault_.rank};
    fault_.parties = {members(act->comm).begin(), members(act->comm).end()};
    fault_.sharp = true;
    return true;
  }

  // All later calls on the communicator are one off.
  bool shift(FaultKind kind) {
    Act* act = find(is_collective_act);
    if (!act) return false;
    fault_.may_blame = {fault_.rank};
    fault_.shifts = true;
    fault_.kinds = both(kDiffer, kAbsent);
    fault_.blameless = both(kDiffer, kCircles);  // ties, and what looks like another order
    if (members(act->comm).size() == 2 || kind == FaultKind::repeats) others_of(act->comm);
    if (kind == FaultKind::zero_count) act->count = 0, act->faulty = true;
    if (kind == FaultKind::repeats) insert(*act, at_);
    if (kind == FaultKind::skips) erase(at_);
    if (kind == FaultKind::wrong_comm) {
      std::vector<int> joined;
      for (size_t i = 0; i < at_; i++)
        if (program()[i].what == Do::init && program()[i].comm != act->comm) joined.push_back(program()[i].comm);
      if (joined.empty()) return false;
      act->comm = random_.pick(joined);
      act->stream = schedule_.comms[static_cast<size_t>(act->comm)].stream;
      if (act->peer >= 0) act->peer = 0;
      act->faulty = true;
      others_of(act->comm);
    }
    return true;
  }

  bool in_group(size_t at) {
    for (size_t i = at; i-- > 0;) {
      if (program()[i].what == Do::group_end) return false;
      if (program()[i].what == Do::group_start) return true;
    }
    return false;
  }
  bool swap_two() {
    if (!find(is_collective_act) || in_group(at_)) return false;
    for (size_t next = at_ + 1; next < program().size(); next++) {
      Act& a = program()[at_];
      Act& b = program()[next];
      if (b.what == Do::init || b.what == Do::group_start || is_message(b)) return false;
      if (!is_collective_act(b) || b.comm == a.comm) continue;
      std::swap(a, b);
      fault_.may_blame = {fault_.rank};
      fault_.shifts = true;
      fault_.kinds = both(kDiffer, kAbsent);
      fault_.blameless = both(kDiffer, kCircles);
      return true;
    }
    return false;
  }

  bool spoil_message(FaultKind kind) {
    Act* act = find(is_message);
    if (!act) return false;
    const int peer = members(act->comm)[static_cast<size_t>(act->peer)];
    if (kind == FaultKind::message_size) {
      act->count = random_.chance(0.5) ? act->count * 2 : act->count / 2;
      act->faulty = true;
      fault_.parties = {fault_.rank, peer};
      fault_.kinds = {Kind::p2p_size_mismatch};
      fault_.sharp = true;
      return true;
    }
    fault_.may_blame = {fault_.rank};
    fault_.if_doubtful = {peer};
    fault_.shifts = true;
    fault_.kinds = both(kAbsent, {Kind::p2p_size_mismatch});
    fault_.blameless = both(kCircles, {Kind::p2p_size_mismatch});
    if (kind == FaultKind::drops_message) {
      erase(at_);
    } else {
      insert(*act, at_);
    }
    return true;
  }

  // Where the acts of the common order up to this event end in a rank's program.
  size_t end_of(int rank, int event) const {
    const std::vector<Act>& acts = schedule_.programs[static_cast<size_t>(rank)];
    size_t at = 0;
    while (at < acts.size() && acts[at].event <= event) at++;
    return at;
  }
  bool both_send_first() {
    const Act* act = find(is_collective_act);
    if (!act || members(act->comm).size() < 2) return false;
    const int comm = act->comm, first = fault_.rank;
    const std::vector<int>& ranks = members(comm);
    const int self = static_cast<int>(std::find(ranks.begin(), ranks.end(), first) - ranks.begin());
    const int other = (self + 1) % static_cast<int>(ranks.size());
    for (const auto& [me, peer] : {std::pair{self, other}, std::pair{other, self}}) {
      Act send{Do::call, comm, Fn::Send, 128, 7, 0, peer, 0.01, schedule_.comms[static_cast<size_t>(comm)].stream};
      Act wait{Do::sync, -1, Fn::none, 0, 7, 0, -1, 0, send.stream};
      Act receive = send;
      receive.fn = Fn::Recv;
      fault_.rank = ranks[static_cast<size_t>(me)];
      size_t at = end_of(fault_.rank, fault_.event);
      for (const Act& each : {send, wait, receive}) insert(each, at++);
    }
    fault_.kinds = {Kind::p2p_cycle};
    fault_.sharp = true;
    return true;
  }

  bool never_completes() {
    const Act* act = find([](const Act& a) { return is_collective_act(a); });
    if (!act || in_group(at_)) return false;
    const Act which = *act;
    for (const int rank : members(which.comm))
      for (Act& each : schedule_.programs[static_cast<size_t>(rank)])
        if (each.event == which.event && each.comm == which.comm && is_collective_act(each))
          each.seconds = std::numeric_limits<double>::infinity();
    fault_.blameless = {Kind::stalled_together};
    fault_.sharp = true;
    return true;
  }

  // Work that is not NCCL's never ends: before a call on its stream, or on another one that the host waits for.
  bool hold(FaultKind kind) {
    const Act* act = find(is_collective_act);
    if (!act || in_group(at_)) return false;
    Act work{Do::foreign};
    work.seconds = std::numeric_limits<double>::infinity();
    work.stream = kind == FaultKind::never_starts ? act->stream : 9;
    if (kind == FaultKind::held_by_device) {
      Act wait{Do::sync};
      wait.stream = 9;
      insert(wait, at_);
    }
    insert(work, at_);
    fault_.may_blame = {fault_.rank};
    fault_.kinds = {kind == FaultKind::never_starts ? Kind::not_started : Kind::host_blocked};
    fault_.sharp = true;
    return true;
  }

  Random& random_;
  Schedule& schedule_;
  Fault fault_;
  size_t at_ = 0;
};

const std::vector<std::string>& names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> made;
#define LOCKSTEP_SIM_NAME(name) made.emplace_back(#name);
    LOCKSTEP_SIM_FAULTS(LOCKSTEP_SIM_NAME)
#undef LOCKSTEP_SIM_NAME
    for (std::string& name : made) std::replace(name.begin(), name.end(), '_', '-');
    return made;
  }();
  return all;
}

}  // namespace

const char* fault_name(FaultKind kind) { return names()[static_cast<size_t>(kind)].c_str(); }

const std::vector<FaultKind>& all_faults() {
  static const std::vector<FaultKind> all = [] {
    std::vector<FaultKind> kinds;
    for (size_t i = 0; i < names().size(); i++) kinds.push_back(static_cast<FaultKind>(i));
    return kinds;
  }();
  return all;
}

std::optional<Fault> inject(Random& random, FaultKind kind, Schedule& schedule) {
  if (is_scene(kind)) return inject_scene(random, kind, schedule);
  return Breaker(random, schedule).inject(kind);
}

}  // namespace lockstep::test
