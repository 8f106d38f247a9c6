// SPDX-License-Identifier: MIT
//
// The machine that executes a schedule as NCCL would. A host thread a rank goes through its program: calls enqueue and
// return, unless the stream's queue is full; a group is launched at its end; a host wait lasts until a stream has
// drained; joining a communicator lasts until all have come. A stream does one thing at a time. A collective is done
// when all members have started theirs, a group of messages when each has its other half: it completes as a unit. Time
// jumps from event to event, so that a hang of minutes costs nothing.
//
// Time and hosts are in simulator_execute.cc, communicators in simulator_comms.cc, streams in simulator_device.cc.

#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/tools/simulator.h"

namespace lockstep::test {

using abi::Fn;
using trace::Call;
using trace::CommInfo;
using trace::CommState;
using trace::TraceFile;

inline constexpr double kNever = std::numeric_limits<double>::infinity();

uint64_t mixed(uint64_t a, uint64_t b);

// A message: communicator, sender, receiver, number on that edge.
using Edge = std::tuple<int, int, int, uint64_t>;
struct Piece {
  Edge edge;
  bool send = false;
  const Act* act = nullptr;
};

struct Halves {
  const Act* sent = nullptr;
  const Act* received = nullptr;
  std::vector<Piece> with;  // what is launched in one piece with either half
};

struct Kernel {
  int comm = -1;     // -1: not NCCL's
  uint64_t seq = 0;  // of a collective
  const Act* act = nullptr;
  std::vector<Piece> pieces;  // messages
  bool started = false;
  double done_at = kNever;
};

struct Host {
  size_t at = 0;
  double ready_at = 0, moved_at = 0;
  bool ended = false, asleep = false;
  int depth = 0;
  uint32_t group = 0, groups = 0;
  std::vector<std::pair<int, Kernel>> held;  // stream and kernel, until the group ends
  std::map<int, std::deque<Kernel>> streams;
  std::optional<size_t> open_call;                         // index into its calls: entered, not returned
  std::map<int, size_t> info_of;                           // communicator -> index into its infos
  std::map<std::pair<int, int>, uint64_t> sent, received;  // (communicator, peer) -> messages so far
};

class Machine {
 public:
  Machine(const Schedule& schedule, uint64_t seed, bool threads) : schedule_(schedule), seed_(seed), threads_(threads) {
    const size_t n = static_cast<size_t>(schedule.ranks);
    hosts_.resize(n);
    files_.resize(n);
    joined_.resize(schedule.comms.size());
    for (int rank = 0; rank < schedule.ranks; rank++) open_file(rank);
    out_.finished.resize(n);
    out_.waits.resize(n);
  }

  Execution run(double cut, const Loss& loss, Ending ending);

 private:
  Host& host(int rank) { return hosts_[static_cast<size_t>(rank)]; }
  TraceFile& file(int rank) { return files_[static_cast<size_t>(rank)]; }
  const SimComm& comm(int index) const { return schedule_.comms[static_cast<size_t>(index)]; }
  CommInfo& info(int rank, int index) { return file(rank).comms[host(rank).info_of.at(index)]; }

  trace::Time time_of(int rank) const;

  void open_file(int rank);

  bool step_all();
  double next_event();

  bool step_host(int rank);
  bool finish(int rank);
  void end(int rank, int signal, int status = 0);

  Call& record(int rank, Fn fn, const Act* act);
  void leave_open(int rank);
  void come_back(int rank);

  bool room(int rank, int stream);

  bool call(int rank, const Act& act);
  static void remember(CommInfo& at, const Call& call);

  bool end_group(int rank);

  void make_info(int rank, int index, CommState state);

  bool fail_to_join(int rank, const Act& act);
  bool join(int rank, const Act& act);
  bool all_joined(int index) const;
  bool tear_down(int rank, const Act& act);
  void reach(int rank, int event);
  int done_to(int rank);

  bool step_stream(int rank, std::deque<Kernel>& queue);
  void start(int rank, Kernel& kernel);
  bool all_paired(const std::vector<Piece>& pieces);
  double duration(const Kernel& kernel);

  void snapshot(int rank);
  void end_by_others(Ending ending);

  void close(const Loss& loss, Ending ending);

  const Schedule& schedule_;
  uint64_t seed_;
  bool threads_;
  double now_ = 0;
  std::vector<Host> hosts_;
  std::vector<TraceFile> files_;
  std::vector<std::set<int>> joined_;
  std::map<int, std::set<int>> leaving_;  // by communicator: who has called its end
  std::map<std::pair<int, uint64_t>, std::vector<const Act*>> rows_;
  std::map<Edge, Halves> halves_;
  Execution out_;
};

}  // namespace lockstep::test
