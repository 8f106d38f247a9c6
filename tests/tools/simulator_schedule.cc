// SPDX-License-Identifier: MIT
//
// Random legal schedules. There is one common order of events; each rank's program is its part of them. Whoever follows
// one common order cannot deadlock, however streams, waits and groups are strewn in.

#include <algorithm>

#include "tests/tools/simulator.h"

namespace lockstep::test {
namespace {

using abi::Fn;

class Maker {
 public:
  Maker(Random& random, bool lengthy) : random_(random), lengthy_(lengthy) {}

  Schedule make() {
    schedule_.ranks = random_.pick(std::vector<int>{2, 2, 3, 3, 4, 4, 4, 6, 8, 8, 12, 16});
    schedule_.programs.resize(static_cast<size_t>(schedule_.ranks));
    schedule_.queue_depth = random_.pick(std::vector<int>{4, 32, 1024});
    schedule_.stays = random_.chance(0.3);
    slow_ = random_.chance(0.5) ? random_.below(schedule_.ranks) : -1;
    sync_chance_ = random_.pick(std::vector<double>{0.02, 0.2, 0.7});
    make_comms();
    const int steps = (1 + random_.below(4)) * (lengthy_ ? 6 : 1), events = 2 + random_.below(8);
    for (int step = 0; step < steps; step++)
      for (int i = 0; i < events; i++) add_event();
    for (int rank = 0; rank < schedule_.ranks; rank++)
      for (int stream = 0; stream < streams_; stream++) add(rank, {Do::sync, -1, Fn::none, 0, 7, 0, -1, 0, stream});
    if (random_.chance(0.5)) tear_down();
    return std::move(schedule_);
  }

 private:
  std::vector<Act>& program(int rank) { return schedule_.programs[static_cast<size_t>(rank)]; }
  void add(int rank, Act act) {
    act.event = event_;
    program(rank).push_back(act);
  }

  // --- communicators: world, and the dimensions of a grid
  void make_comms() {
    streams_ = random_.chance(0.4) ? 1 : 3;
    add_comm(all());
    families_ = {{0}};
    const int n = schedule_.ranks;
    std::vector<int> sizes;
    for (int size = 2; size < n; size++)
      if (n % size == 0) sizes.push_back(size);
    for (int i = 0; i < 3 && !sizes.empty() && random_.chance(0.8); i++) add_family(random_.pick(sizes));
    for (size_t comm = 0; comm < schedule_.comms.size(); comm++)
      if (comm == 0 || random_.chance(0.8)) make(static_cast<int>(comm));
  }
  std::vector<int> all() const {
    std::vector<int> ranks(static_cast<size_t>(schedule_.ranks));
    for (int rank = 0; rank < schedule_.ranks; rank++) ranks[static_cast<size_t>(rank)] = rank;
    return ranks;
  }
  void add_comm(std::vector<int> ranks) {
    schedule_.comms.push_back({std::move(ranks), random_.below(streams_)});
    made_.push_back(false);
  }
  // Neighbours (tensor parallel) or every k-th rank (data parallel).
  void add_family(int size) {
    const int groups = schedule_.ranks / size;
    const bool neighbours = random_.chance(0.5), split = random_.chance(0.4);
    families_.emplace_back();
    for (int group = 0; group < groups; group++) {
      std::vector<int> ranks;
      for (int i = 0; i < size; i++) ranks.push_back(neighbours ? group * size + i : group + i * groups);
      families_.back().push_back(static_cast<int>(schedule_.comms.size()));
      add_comm(std::move(ranks));
      if (split) schedule_.comms.back().parent = 0, schedule_.comms.back().color = group;
    }
  }
  void make(int comm) {
    if (made_[static_cast<size_t>(comm)]) return;
    if (schedule_.comms[static_cast<size_t>(comm)].parent >= 0) return make_split(comm);
    made_[static_cast<size_t>(comm)] = true;
    event_++;
    for (const int rank : schedule_.comms[static_cast<size_t>(comm)].ranks) {
      compute(rank);
      add(rank, {Do::init, comm});
    }
  }

  // A split is one call of all ranks of the parent, and makes the whole family.
  void make_split(int comm) {
    event_++;
    splits_++;
    for (const std::vector<int>& family : families_) {
      if (std::find(family.begin(), family.end(), comm) == family.end()) continue;
      for (const int each : family) {
        schedule_.comms[static_cast<size_t>(each)].split = splits_;
        made_[static_cast<size_t>(each)] = true;
        for (const int rank : schedule_.comms[static_cast<size_t>(each)].ranks) {
          compute(rank);
          add(rank, {Do::init, each});
        }
      }
    }
  }

  // --- events
  void add_event() {
    const std::vector<int>& family = random_.pick(families_);
    for (const int comm : family) make(comm);
    event_++;
    switch (random_.below(8)) {
      case 0:
        return chain(family);
      case 1:
        return exchange(family);
      case 2:
        return grouped(family);
      case 3:
        return lengthy_ ? collective(family) : zero(family);
      default:
        return collective(family);
    }
  }

  Act random_collective() {
    static const std::vector<Fn> kFns = {Fn::AllReduce,     Fn::AllReduce, Fn::AllGather,
                                         Fn::ReduceScatter, Fn::Broadcast, Fn::Reduce};
    Act act;
    act.what = Do::call;
    act.fn = random_.pick(kFns);
    act.count = random_.pick(std::vector<uint64_t>{1, 1, 16, 1024, 1024, 4096, 65536});
    act.dtype = static_cast<uint8_t>(random_.pick(std::vector<int>{7, 7, 7, 8, 9}));
    act.redop = abi::has_role(act.fn, abi::ArgRole::redop) && random_.chance(0.1) ? 2 : 0;
    act.peer = abi::has_role(act.fn, abi::ArgRole::root) ? 0 : -1;
    act.seconds = random_.real(0.001, 0.05);
    return act;
  }
  Act on(int comm, Act act) const {
    act.comm = comm;
    act.stream = schedule_.comms[static_cast<size_t>(comm)].stream;
    return act;
  }
  void after(int rank, int stream) {
    if (random_.chance(sync_chance_)) add(rank, {Do::sync, -1, Fn::none, 0, 7, 0, -1, 0, stream});
  }

  void collective(const std::vector<int>& family) {
    const Act act = random_collective();
    for (const int comm : family)
      for (const int rank : schedule_.comms[static_cast<size_t>(comm)].ranks) {
        compute(rank);
        add(rank, on(comm, act));
        after(rank, on(comm, act).stream);
      }
  }
  void zero(const std::vector<int>& family) {
    Act act = random_collective();
    act.count = 0;
    for (const int comm : family)
      for (const int rank : schedule_.comms[static_cast<size_t>(comm)].ranks) add(rank, on(comm, act));
  }
  void grouped(const std::vector<int>& family) {
    std::vector<Act> acts(static_cast<size_t>(1 + random_.below(3)));
    for (Act& act : acts) act = random_collective();
    for (const int comm : family)
      for (const int rank : schedule_.comms[static_cast<size_t>(comm)].ranks) {
        compute(rank);
        add(rank, {Do::group_start});
        for (const Act& act : acts) add(rank, on(comm, act));
        add(rank, {Do::group_end});
        after(rank, on(comm, acts[0]).stream);
      }
  }
  Act message(int comm, bool send, int peer, uint64_t count) {
    Act act;
    act.what = Do::call;
    act.fn = send ? Fn::Send : Fn::Recv;
    act.count = count;
    act.peer = peer;
    act.seconds = 0.01;
    return on(comm, act);
  }
  // A pipeline: each stage hands on to the next.
  void chain(const std::vector<int>& family) {
    const int micro = 1 + random_.below(3);
    const bool back = random_.chance(0.5);
    for (const int comm : family) {
      const std::vector<int>& ranks = schedule_.comms[static_cast<size_t>(comm)].ranks;
      const int last = static_cast<int>(ranks.size()) - 1;
      for (int m = 0; m < micro; m++)
        for (int i = 0; i < last; i++) {
          const int from = back ? last - i : i, to = back ? last - i - 1 : i + 1;
          event_++;
          compute(ranks[static_cast<size_t>(from)]);
          add(ranks[static_cast<size_t>(from)], message(comm, true, to, 512));
          add(ranks[static_cast<size_t>(to)], message(comm, false, from, 512));
          after(ranks[static_cast<size_t>(to)], message(comm, true, to, 1).stream);
        }
    }
  }
  // All to all, or around a ring, by messages in one group.
  void exchange(const std::vector<int>& family) {
    const bool ring = random_.chance(0.5);
    for (const int comm : family) {
      const std::vector<int>& ranks = schedule_.comms[static_cast<size_t>(comm)].ranks;
      const int n = static_cast<int>(ranks.size());
      for (int i = 0; i < n; i++) {
        const int rank = ranks[static_cast<size_t>(i)];
        compute(rank);
        add(rank, {Do::group_start});
        for (int k = 1; k < n; k++) {
          if (ring && k > 1) break;
          add(rank, message(comm, true, (i + k) % n, 256));
          add(rank, message(comm, false, (i + n - k) % n, 256));
        }
        add(rank, {Do::group_end});
        after(rank, message(comm, true, 0, 1).stream);
      }
    }
  }

  void compute(int rank) {
    double seconds = random_.real(0.0005, 0.05);
    if (random_.chance(0.03)) seconds += random_.real(1, 20);
    if (rank == slow_) seconds += random_.real(0, 3);
    Act act;
    act.seconds = seconds;
    add(rank, act);
  }

  void tear_down() {
    for (size_t comm = schedule_.comms.size(); comm-- > 0;) {
      if (!made_[comm]) continue;
      event_++;
      for (const int rank : schedule_.comms[comm].ranks) add(rank, {Do::destroy, static_cast<int>(comm)});
    }
  }

  Random& random_;
  Schedule schedule_;
  std::vector<std::vector<int>> families_;  // communicators that are used alike
  std::vector<bool> made_;
  int event_ = 0, streams_ = 1, slow_ = -1, splits_ = 0;
  double sync_chance_ = 0;
  bool lengthy_;
};

}  // namespace

Schedule random_schedule(Random& random, bool lengthy) { return Maker(random, lengthy).make(); }

}  // namespace lockstep::test
