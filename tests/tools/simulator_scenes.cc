// SPDX-License-Identifier: MIT
//
// Faults that take several ranks (circles, groups that do not pair up, teardown), and those that only values beside the
// calls show. A scene is put in at one event of the common order, in the programs of all ranks it concerns: before it
// everything goes well, and behind it everybody is held up.

#include <algorithm>

#include "tests/tools/simulator.h"

namespace lockstep::test {
namespace {

using abi::Fn;

constexpr int kWorld = 0;
constexpr uint64_t kOdd = 777, kOther = 779;  // counts that no other call has

class Scene {
 public:
  Scene(Random& random, Schedule& schedule) : random_(random), schedule_(schedule) {}

  std::optional<Fault> make(FaultKind kind) {
    for (const std::vector<Act>& acts : schedule_.programs)
      if (std::none_of(acts.begin(), acts.end(), makes_world)) return std::nullopt;  // it fails already
    fault_.kind = kind;
    odd_ = random_.below(schedule_.ranks);
    other_ = (odd_ + 1 + random_.below(schedule_.ranks - 1)) % schedule_.ranks;
    fault_.rank = odd_;
    fault_.comm = kWorld;
    fault_.event = event_ = random_event();
    fault_.sharp = true;
    return apply(kind) ? std::optional<Fault>(fault_) : std::nullopt;
  }

 private:
  static bool makes_world(const Act& act) { return act.what == Do::init && act.comm == kWorld; }
  std::vector<Act>& program(int rank) { return schedule_.programs[static_cast<size_t>(rank)]; }
  SimComm& comm(int index) { return schedule_.comms[static_cast<size_t>(index)]; }
  bool is_odd(int rank) const { return rank == odd_; }

  // Behind the making of world, and before anything is torn down.
  int random_event() {
    int last = 1;
    for (const std::vector<Act>& acts : schedule_.programs)
      for (const Act& act : acts) {
        if (act.what == Do::destroy) break;
        last = std::max(last, act.event);
      }
    return 1 + random_.below(last);
  }
  // Behind all acts of the rank up to that event, those put in before included.
  void put(int rank, Act act) {
    std::vector<Act>& acts = program(rank);
    size_t at = 0;
    while (at < acts.size() && acts[at].event <= event_) at++;
    act.event = event_;
    act.faulty = true;
    acts.insert(acts.begin() + static_cast<std::ptrdiff_t>(at), act);
  }
  void put_call(int rank, int comm_index, Fn fn, uint64_t count, int peer = -1) {
    put(rank, {Do::call, comm_index, fn, count, 7, 0, peer, 0.01, comm(comm_index).stream});
  }
  void put_wait(int rank, int comm_index) {
    put(rank, {Do::sync, -1, Fn::none, 0, 7, 0, -1, 0, comm(comm_index).stream});
  }
  void put_call_and_wait(int rank, int comm_index, uint64_t count) {
    put_call(rank, comm_index, Fn::AllReduce, count);
    put_wait(rank, comm_index);
  }
  template <class Put>
  void all(const Put& put_it) {
    for (int rank = 0; rank < schedule_.ranks; rank++) put_it(rank);
  }
  int new_world(int stream) {
    schedule_.comms.push_back({comm(kWorld).ranks, stream});
    const int made = static_cast<int>(schedule_.comms.size()) - 1;
    all([&](int rank) { put(rank, {Do::init, made}); });
    return made;
  }
  bool blames_nobody(Kind kind) {
    fault_.blameless = {kind};
    return true;
  }
  bool beside(Kind kind, std::set<int> shown) {
    fault_.kinds = {kind};
    fault_.shown = std::move(shown);
    fault_.shows = fault_.beside = fault_.alone = true;
    return true;
  }

  bool apply(FaultKind kind) {
    switch (kind) {
      case FaultKind::init_fails:
        return init_fails();
      case FaultKind::uneven_groups:
        return uneven_groups();
      case FaultKind::inverts_with_waits:
      case FaultKind::inverts_on_one_stream:
      case FaultKind::inverts_harmlessly:
        return inverts(kind);
      case FaultKind::crosses:
        return crosses();
      case FaultKind::wider_comm:
        return wider_comm();
      case FaultKind::teardown_crossed:
        return teardown_crossed();
      case FaultKind::call_fails:
        return call_fails();
      case FaultKind::shares_device:
        return shares_device();
      case FaultKind::two_worlds:
        return two_worlds();
      case FaultKind::late:
      case FaultKind::no_trace:
        return stays_out(kind);
      case FaultKind::nothing_to_do:
        schedule_.stays = true;
        fault_.looked_at = random_.real(1.1, 3);
        return beside(Kind::idle, {});
      default:
        return planted(kind);
    }
  }

  // --- circles

  // One rank takes two communicators in the other order.
  bool inverts(FaultKind kind) {
    const bool harmless = kind == FaultKind::inverts_harmlessly;
    const int second = new_world(comm(kWorld).stream + (harmless ? 7 : 0));
    const bool waits = kind == FaultKind::inverts_with_waits;
    all([&](int rank) {
      const int first = is_odd(rank) ? second : kWorld;
      put_call(rank, first, Fn::AllReduce, kOdd);
      if (waits) put_wait(rank, first);
      put_call(rank, second - first, Fn::AllReduce, kOdd);
      if (!harmless) put_wait(rank, kWorld);
    });
    return harmless ? beside(Kind::order_inversion, {odd_}) : blames_nobody(Kind::order_inversion);
  }

  // It sends before a collective, the receiver receives behind it, and both wait after each.
  bool crosses() {
    put_call(odd_, kWorld, Fn::Send, kOther, other_);
    put_wait(odd_, kWorld);
    all([&](int rank) { put_call_and_wait(rank, kWorld, kOdd); });
    put_call(other_, kWorld, Fn::Recv, kOther, odd_);
    put_wait(other_, kWorld);
    return blames_nobody(Kind::cross_communicator_cycle);
  }

  bool is_made(int index) {
    for (const Act& act : program(comm(index).ranks.front()))
      if (act.what == Do::init && act.comm == index && act.event <= event_) return true;
    return false;
  }
  // What a group has called among itself before, it now calls on world; meanwhile the others are at their next call.
  bool wider_comm() {
    std::vector<int> groups;
    for (int index = 1; index < static_cast<int>(schedule_.comms.size()); index++)
      if (is_made(index)) groups.push_back(index);
    if (groups.empty()) return false;
    const int group = random_.pick(groups);
    const std::vector<int> ranks = comm(group).ranks;
    for (const int rank : ranks) put_call_and_wait(rank, group, kOdd);
    const int second = new_world(comm(kWorld).stream);
    for (const int rank : ranks) put_call_and_wait(rank, kWorld, kOdd);
    all([&](int rank) { put_call_and_wait(rank, second, kOther); });
    fault_.may_blame = {ranks.begin(), ranks.end()};
    fault_.kinds = {Kind::wrong_communicator};
    return true;
  }

  // One sends twice and receives once, the other only receives twice: all pair up but one.
  bool uneven_groups() {
    put(odd_, {Do::group_start});
    put(other_, {Do::group_start});
    for (int i = 0; i < 2; i++) {
      put_call(odd_, kWorld, Fn::Send, kOdd, other_);
      put_call(other_, kWorld, Fn::Recv, kOdd, odd_);
    }
    put_call(odd_, kWorld, Fn::Recv, kOdd, other_);
    for (const int rank : {odd_, other_}) {
      put(rank, {Do::group_end});
      put_wait(rank, kWorld);
    }
    return blames_nobody(Kind::group_mismatch);
  }

  bool teardown_crossed() {
    const int second = new_world(comm(kWorld).stream);
    for (std::vector<Act>& acts : schedule_.programs) {
      const auto is_teardown = [](const Act& act) { return act.what == Do::destroy; };
      acts.erase(std::remove_if(acts.begin(), acts.end(), is_teardown), acts.end());
    }
    fault_.event = event_ = last_event() + 1;
    all([&](int rank) {
      for (const int index : {is_odd(rank) ? second : kWorld, is_odd(rank) ? kWorld : second}) {
        Act act{Do::destroy, index};
        act.peer = 1;
        put(rank, act);
      }
    });
    return blames_nobody(Kind::teardown_order);
  }
  int last_event() const {
    int last = 0;
    for (const std::vector<Act>& acts : schedule_.programs)
      if (!acts.empty()) last = std::max(last, acts.back().event);
    return last;
  }

  // --- beginnings

  // The making of world fails on these, and nothing follows.
  void fail_init(int rank, int error, bool together, Act then) {
    std::vector<Act>& acts = program(rank);
    const auto at = std::find_if(acts.begin(), acts.end(), makes_world);
    acts.erase(at + 1, acts.end());
    at->what = Do::init_fails;
    at->peer = error;
    at->count = together ? 1 : 0;
    fault_.event = then.event = at->event;
    acts.push_back(then);
  }
  bool init_fails() {
    fail_init(odd_, 2, false, {Do::sleep});
    fault_.may_blame = {odd_};
    fault_.kinds = {Kind::init_incomplete};
    return true;
  }
  bool shares_device() {
    if (schedule_.ranks < 4) return false;
    odd_ = random_.below(schedule_.ranks - 3);
    other_ = odd_ + 3;  // on the same host
    Act then{random_.chance(0.5) ? Do::sleep : Do::leave};
    then.count = 1;
    all([&](int rank) { fail_init(rank, 5, true, then); });
    schedule_.planted.push_back({Planted::What::devices, odd_, other_, kWorld});
    fault_.blameless = {Kind::duplicate_device};
    fault_.shown = {odd_, other_};
    fault_.shows = fault_.alone = true;
    return true;
  }
  bool two_worlds() {
    if (schedule_.ranks < 4 || schedule_.ranks % 2) return false;
    const int half = schedule_.ranks / 2;
    schedule_.comms = {{}, {}};
    schedule_.planted.clear();
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      comm(rank / half).ranks.push_back(rank);
      program(rank).clear();
      event_ = 1;
      put(rank, {Do::init, rank / half});
      for (uint64_t i = 0; i < 5; i++) put_call_and_wait(rank, rank / half, kOdd + i);
    }
    fault_.event = 1;
    return beside(Kind::group_size, {});
  }

  bool call_fails() {
    schedule_.stays = true;
    Act act{Do::fails, kWorld, Fn::CommRegister};
    act.peer = 2;
    put(odd_, act);
    fault_.may_blame = {odd_};
    fault_.kinds = {Kind::comm_error};
    fault_.shows = fault_.alone = true;
    return true;
  }

  // --- what is no fault, or cannot be known to be one

  bool stays_out(FaultKind kind) {
    if (schedule_.ranks < 3 && kind == FaultKind::no_trace) return false;
    std::vector<Act>& acts = program(odd_);
    std::vector<size_t> places;
    for (size_t i = 0; i < acts.size(); i++)
      if ((acts[i].what == Do::call || acts[i].what == Do::group_start) && acts[i].event >= event_) places.push_back(i);
    if (places.empty()) return false;
    const size_t at = random_.pick(places);
    if (at > 0 && acts[at - 1].what == Do::group_start) return false;
    Act act{Do::sleep};
    fault_.event = act.event = acts[at].event;
    acts.insert(acts.begin() + static_cast<std::ptrdiff_t>(at), act);
    fault_.may_blame = {odd_};
    if (kind == FaultKind::no_trace) return beside(Kind::missing_trace, {});
    fault_.looked_at = random_.real(0.15, 0.4);
    return beside(Kind::straggler, {odd_});
  }

  // --- what only the records show

  bool planted(FaultKind kind) {
    fault_.shows = fault_.alone = true;
    if (kind == FaultKind::other_environment) {
      schedule_.planted.push_back({Planted::What::environment, odd_, -1, kWorld});
      return beside(Kind::environment_differs, {odd_});
    }
    if (kind == FaultKind::same_samples) {
      schedule_.planted.push_back({Planted::What::samples, odd_, other_, kWorld});
      return beside(Kind::duplicate_data, {odd_, other_});
    }
    if (kind == FaultKind::two_threads) {
      all([&](int rank) {
        for (int i = 0; i < 2; i++) put_call(rank, kWorld, Fn::AllReduce, kOdd);
      });
      schedule_.planted.push_back({Planted::What::two_threads, odd_, -1, kWorld});
      return beside(Kind::concurrent_use, {odd_});
    }
    all([&](int rank) { put_call(rank, kWorld, Fn::AllReduce, kOdd); });
    schedule_.planted.push_back({Planted::What::digests, odd_, -1, kWorld});
    if (schedule_.ranks > 2) {
      fault_.may_blame = {odd_};
      fault_.kinds = {Kind::result_divergence};
      return true;
    }
    return blames_nobody(Kind::result_divergence);
  }

  Random& random_;
  Schedule& schedule_;
  Fault fault_;
  int odd_ = -1, other_ = -1, event_ = 0;
};

}  // namespace

bool is_scene(FaultKind kind) {
  switch (kind) {
    case FaultKind::init_fails:
    case FaultKind::uneven_groups:
    case FaultKind::inverts_with_waits:
    case FaultKind::inverts_on_one_stream:
    case FaultKind::inverts_harmlessly:
    case FaultKind::crosses:
    case FaultKind::wider_comm:
    case FaultKind::teardown_crossed:
      return true;
    default:
      return kind >= FaultKind::call_fails;
  }
}

std::optional<Fault> inject_scene(Random& random, FaultKind kind, Schedule& schedule) {
  return Scene(random, schedule).make(kind);
}

}  // namespace lockstep::test
