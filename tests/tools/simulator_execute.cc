// SPDX-License-Identifier: MIT
//
// Executes a schedule as NCCL would. A host thread a rank goes through its program: calls enqueue and return, unless
// the stream's queue is full; a group is launched at its end; a host wait lasts until a stream has drained; joining a
// communicator lasts until all have come. A stream does one thing at a time. A collective is done when all members have
// started theirs, a group of messages when each has its other half: it completes as a unit. Time jumps from event to
// event, so that a hang of minutes costs nothing.

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>

#include "tests/tools/simulator.h"
#include "tools/match.h"

namespace lockstep::test {
namespace {

using abi::Fn;
using trace::Call;
using trace::CommInfo;
using trace::CommState;
using trace::TraceFile;

constexpr double kNever = std::numeric_limits<double>::infinity();

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// One half of a message: communicator, sender, receiver, number on that edge.
using Edge = std::tuple<int, int, int, uint64_t>;
struct Halves {
  const Act* sent = nullptr;
  const Act* received = nullptr;
};

struct Piece {
  Edge edge;
  bool send = false;
  const Act* act = nullptr;
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

  Execution run(double cut, const Loss& loss, Ending ending) {
    while (true) {
      while (step_all()) {
      }
      const double next = next_event();
      if (next > cut || next == kNever) break;
      now_ = next;
      out_.end = now_;
    }
    now_ = std::isfinite(cut) ? std::max(cut, now_) : now_;
    close(loss, ending);
    return std::move(out_);
  }

 private:
  Host& host(int rank) { return hosts_[static_cast<size_t>(rank)]; }
  TraceFile& file(int rank) { return files_[static_cast<size_t>(rank)]; }
  const SimComm& comm(int index) const { return schedule_.comms[static_cast<size_t>(index)]; }
  CommInfo& info(int rank, int index) { return file(rank).comms[host(rank).info_of.at(index)]; }

  // Each process has a monotonic clock of its own; the hosts' wall clocks differ a little.
  trace::Time time_of(int rank) const {
    if (threads_) rank = 0;
    const int64_t ns = static_cast<int64_t>((now_ + 1000) * 1e9);
    return {ns + 5'000'000'000LL * rank, 1'800'000'000'000'000'000LL + ns + 20'000'000LL * (rank % 3)};
  }

  void open_file(int rank) {
    TraceFile& at = file(rank);
    memset(&at.header, 0, sizeof at.header);
    at.path = "rank" + std::to_string(rank) + ".lstrace";
    at.header.pid = 100 + rank;
    at.header.env_rank = rank;
    at.header.env_world_size = schedule_.ranks;
    at.header.hang_ms = static_cast<uint32_t>(kSimThreshold * 1000);
    strcpy(at.header.host, rank % 3 == 0 ? "a" : rank % 3 == 1 ? "b" : "c");
    strcpy(at.header.run_id, "simulated");
    at.header.opened_mono_ns = time_of(rank).mono_ns;
    at.header.opened_wall_ns = time_of(rank).wall_ns;
    at.heartbeat_known = at.status_known = true;
    at.threads.emplace_back();
    at.threads.front().tid = static_cast<uint32_t>(at.header.pid);
  }

  // --- time
  bool step_all() {
    bool moved = false;
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      while (step_host(rank)) {
        host(rank).moved_at = now_;
        moved = true;
      }
      for (auto& [stream, queue] : host(rank).streams)
        while (step_stream(rank, queue)) moved = true;
    }
    return moved;
  }
  double next_event() {
    double next = kNever;
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      const Host& h = host(rank);
      if (!h.ended && !h.asleep && h.ready_at > now_) next = std::min(next, h.ready_at);
      if (h.ended) continue;
      for (const auto& [stream, queue] : h.streams)
        if (!queue.empty() && queue.front().done_at > now_) next = std::min(next, queue.front().done_at);
    }
    return next;
  }

  // --- hosts
  bool step_host(int rank) {
    Host& h = host(rank);
    const std::vector<Act>& program = schedule_.programs[static_cast<size_t>(rank)];
    if (h.ended || h.asleep || h.ready_at > now_) return false;
    if (h.at >= program.size()) return finish(rank);
    const Act& act = program[h.at];
    switch (act.what) {
      case Do::compute:
        h.ready_at = now_ + act.seconds;
        break;
      case Do::call:
        if (!call(rank, act)) return false;
        break;
      case Do::group_start:
        h.group = ++h.groups;
        h.depth = 1;
        record(rank, Fn::GroupStart, nullptr);
        break;
      case Do::group_end:
        if (!end_group(rank)) return false;
        break;
      case Do::sync:
        if (!h.streams[act.stream].empty()) return false;
        break;
      case Do::foreign:
        h.streams[act.stream].push_back({-1, 0, &act, {}});
        break;
      case Do::init:
        if (!join(rank, act)) return false;
        break;
      case Do::destroy:
        tear_down(rank, act.comm);
        break;
      case Do::sleep:
        h.asleep = true;
        return false;
      case Do::leave:
      case Do::die:
        end(rank, act.what == Do::die ? act.peer : 0);
        return true;
    }
    h.at++;
    return true;
  }
  bool finish(int rank) {
    if (schedule_.stays) {
      host(rank).asleep = true;
      out_.finished[static_cast<size_t>(rank)] = true;
      return false;
    }
    out_.finished[static_cast<size_t>(rank)] = true;
    end(rank, 0);
    return true;
  }
  void end(int rank, int signal) {
    host(rank).ended = true;
    TraceFile& at = file(rank);
    at.last_beat = time_of(rank);
    if (signal == SIGKILL) {
      at.supervisor = trace::SupervisorState::gone;
      at.supervisor_time = time_of(rank);
      return;
    }
    at.exit_kind = signal ? trace::ExitKind::fatal_signal : trace::ExitKind::exit;
    at.exit_code = signal;
    at.exit_time = time_of(rank);
  }

  Call& record(int rank, Fn fn, const Act* act) {
    TraceFile& at = file(rank);
    Call call;
    call.event = at.events++;
    call.fn = static_cast<uint16_t>(fn);
    call.tid = at.threads.front().tid;
    call.called = call.return_time = time_of(rank);
    call.returned = true;
    if (act) {
      call.comm = act->comm >= 0 && host(rank).info_of.count(act->comm) ? info(rank, act->comm).serial : 0;
      call.count = act->count;
      call.dtype = act->dtype;
      call.redop = act->redop;
      call.peer = act->peer;
      call.stream = static_cast<uint64_t>(act->stream + 1);
    }
    if (host(rank).depth > 0) {
      call.group = host(rank).group;
      call.group_depth = 1;
      call.flags |= trace::kInGroup;
    }
    at.calls.push_back(call);
    at.last_call = call.called;
    return at.calls.back();
  }
  void leave_open(int rank) {
    TraceFile& at = file(rank);
    at.calls.back().returned = false;
    host(rank).open_call = at.calls.size() - 1;
    at.threads.front().open_call = at.calls.back().event;
  }
  void come_back(int rank) {
    TraceFile& at = file(rank);
    Call& call = at.calls[*host(rank).open_call];
    call.returned = true;
    call.return_time = at.last_call = time_of(rank);
    host(rank).open_call.reset();
    at.threads.front().open_call.reset();
  }

  bool room(int rank, int stream) {
    return host(rank).streams[stream].size() < static_cast<size_t>(schedule_.queue_depth);
  }

  // False = still inside the call.
  bool call(int rank, const Act& act) {
    Host& h = host(rank);
    if (h.open_call) {
      if (!room(rank, act.stream)) return false;
      come_back(rank);
      return true;
    }
    reach(act.event);
    Call& call = record(rank, act.fn, &act);
    CommInfo& at = info(rank, act.comm);
    Kernel kernel{act.comm, 0, &act, {}};
    if (is_p2p(call)) {
      const int self = at.rank;
      const bool send = act.fn == Fn::Send;
      uint64_t& number = (send ? h.sent : h.received)[{act.comm, act.peer}];
      kernel.pieces.push_back(
          {send ? Edge{act.comm, self, act.peer, number} : Edge{act.comm, act.peer, self, number}, send, &act});
      call.seq = number++;
      at.p2p_called++;
    } else if (act.count == 0) {
      call.flags |= trace::kZeroCount;
      remember(at, call);
      return true;
    } else {
      kernel.seq = call.seq = at.coll_called++;
      at.coll_returned++;
    }
    remember(at, call);
    if (h.depth > 0) {
      h.held.emplace_back(act.stream, std::move(kernel));
      return true;
    }
    h.streams[act.stream].push_back(std::move(kernel));
    if (room(rank, act.stream)) return true;
    leave_open(rank);
    return false;
  }
  static void remember(CommInfo& at, const Call& call) {
    at.recent.push_back(call);
    if (at.recent.size() > trace::kRecentCalls) at.recent.erase(at.recent.begin());
  }

  // All messages of a group on one communicator are one kernel.
  bool end_group(int rank) {
    Host& h = host(rank);
    record(rank, Fn::GroupEnd, nullptr);
    h.depth = 0;
    std::map<int, Kernel> messages;
    for (auto& [stream, kernel] : h.held) {
      if (kernel.pieces.empty()) {
        h.streams[stream].push_back(std::move(kernel));
        continue;
      }
      const auto [place, is_new] = messages.try_emplace(kernel.comm, kernel);
      if (!is_new) place->second.pieces.push_back(kernel.pieces.front());
    }
    for (auto& [index, kernel] : messages) h.streams[comm(index).stream].push_back(std::move(kernel));
    h.held.clear();
    return true;
  }

  bool join(int rank, const Act& act) {
    Host& h = host(rank);
    auto& joined = joined_[static_cast<size_t>(act.comm)];
    if (!h.open_call) {
      reach(act.event);
      TraceFile& at = file(rank);
      const std::vector<int>& ranks = comm(act.comm).ranks;
      const bool is_split = comm(act.comm).parent >= 0;
      CommInfo made;
      made.serial = static_cast<uint32_t>(at.comms.size() + 1);
      made.state = CommState::initialising;
      made.id = mixed(77, static_cast<uint64_t>(act.comm)) | 1;
      if (is_split) {
        const CommInfo& parent = info(rank, comm(act.comm).parent);
        made.parent_id = parent.id;
        made.parent_serial = parent.serial;
        made.split_count = static_cast<uint32_t>(comm(act.comm).split);
        made.color = comm(act.comm).color;
      } else {
        made.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
        made.nranks = static_cast<int>(ranks.size());
      }
      made.name = act.comm ? "c" + std::to_string(act.comm) : "";
      made.created = time_of(rank);
      made.creator_tid = at.threads.front().tid;
      h.info_of[act.comm] = at.comms.size();
      Call& call = record(rank, is_split ? Fn::CommSplit : Fn::CommInitRank, nullptr);
      call.new_comm = made.serial;
      if (is_split) call.comm = made.parent_serial;
      at.comms.push_back(std::move(made));
      leave_open(rank);
      joined.insert(rank);
    }
    if (!all_joined(act.comm)) return false;
    const std::vector<int>& ranks = comm(act.comm).ranks;
    info(rank, act.comm).rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    info(rank, act.comm).nranks = static_cast<int>(ranks.size());
    info(rank, act.comm).state = CommState::live;
    info(rank, act.comm).ready = time_of(rank);
    come_back(rank);
    return true;
  }
  // A split waits for all ranks of the parent, whatever part they go to.
  bool all_joined(int index) const {
    const SimComm& of = comm(index);
    if (of.parent < 0) return joined_[static_cast<size_t>(index)].size() == of.ranks.size();
    size_t joined = 0;
    for (size_t other = 0; other < joined_.size(); other++)
      if (schedule_.comms[other].parent == of.parent && schedule_.comms[other].split == of.split)
        joined += joined_[other].size();
    return joined == comm(of.parent).ranks.size();
  }
  void tear_down(int rank, int index) {
    record(rank, Fn::CommDestroy, nullptr).comm = info(rank, index).serial;
    info(rank, index).state = CommState::destroyed;
    info(rank, index).ended = time_of(rank);
  }
  void reach(int event) {
    if (out_.reached.size() <= static_cast<size_t>(event)) out_.reached.resize(static_cast<size_t>(event) + 1);
    out_.reached[static_cast<size_t>(event)] = true;
  }

  // --- devices
  bool step_stream(int rank, std::deque<Kernel>& queue) {
    if (queue.empty() || host(rank).ended) return false;  // its work ends with it
    Kernel& front = queue.front();
    if (!front.started) {
      start(rank, front);
      return true;
    }
    if (front.done_at == kNever) {
      const double seconds = duration(front);
      if (seconds == kNever) return false;
      front.done_at = now_ + seconds;
      return true;
    }
    if (front.done_at > now_) return false;
    if (front.comm >= 0 && front.pieces.empty()) info(rank, front.comm).coll_completed = front.seq + 1;
    queue.pop_front();
    return true;
  }
  void start(int rank, Kernel& kernel) {
    kernel.started = true;
    if (kernel.comm < 0) return;
    if (kernel.pieces.empty()) {
      rows_[{kernel.comm, kernel.seq}].push_back(kernel.act);
      info(rank, kernel.comm).coll_started = kernel.seq + 1;
    }
    for (const Piece& piece : kernel.pieces)
      (piece.send ? halves_[piece.edge].sent : halves_[piece.edge].received) = piece.act;
  }
  // How long it takes from now on; never, while somebody is missing.
  double duration(const Kernel& kernel) {
    if (kernel.comm < 0 || !kernel.pieces.empty()) {
      for (const Piece& piece : kernel.pieces) {
        const Halves& both = halves_[piece.edge];
        if (!both.sent || !both.received) return kNever;
        // A receive that is too small cuts the message, one that is too large waits for the rest.
        if (both.received->count > both.sent->count) return kNever;
      }
      return kernel.act->seconds;
    }
    const std::vector<const Act*>& row = rows_[{kernel.comm, kernel.seq}];
    if (row.size() < comm(kernel.comm).ranks.size()) return kNever;
    double longest = 0;
    for (const Act* act : row) {
      longest = std::max(longest, act->seconds);
      const Act& first = *row.front();
      const bool alike = act->fn == first.fn && act->count == first.count && act->dtype == first.dtype &&
                         act->redop == first.redop && act->peer == first.peer;
      if (!alike && mixed(seed_, kernel.seq + static_cast<uint64_t>(kernel.comm) * 1000) % 2) return kNever;
    }
    return longest;
  }

  // --- what remains
  void snapshot(int rank) {
    const Host& h = host(rank);
    const std::vector<Act>& program = schedule_.programs[static_cast<size_t>(rank)];
    const bool in_wait = !h.asleep && h.ready_at <= now_ && h.at < program.size() && program[h.at].what == Do::sync;
    const char* function = h.open_call ? "ncclAllReduce" : in_wait ? "cudaStreamSynchronize" : "train_step";
    TraceFile& at = file(rank);
    trace::Snapshot shot;
    shot.when = time_of(rank);
    shot.round = 1;
    shot.tid = at.threads.front().tid;
    shot.pcs = {0x1000 + strlen(function)};
    at.snapshots.push_back(shot);
    trace::Symbol symbol;
    symbol.pc = shot.pcs[0];
    symbol.function = function;
    at.symbols.push_back(symbol);
  }
  void lose(TraceFile& at, const Loss& loss) {
    if (loss.snapshots) at.snapshots.clear();
    if (loss.device_states)
      for (CommInfo& each : at.comms) each.coll_started.reset(), each.coll_completed.reset();
    if (loss.ring && at.calls.size() > loss.ring) {
      at.overwritten = at.calls.size() - loss.ring;
      at.calls.erase(at.calls.begin(), at.calls.end() - static_cast<std::ptrdiff_t>(loss.ring));
    }
  }
  // Watchdogs give up where a rank has waited for long; a moment later somebody notices, and ends what is left.
  void end_by_others(Ending ending) {
    if (ending == Ending::looked_at) return;
    const auto random = [&](int rank) { return mixed(seed_ + 5, static_cast<uint64_t>(rank)); };
    for (int rank = 0; rank < schedule_.ranks && ending == Ending::torn_down; rank++) {
      const bool has_waited = out_.waits[static_cast<size_t>(rank)] && now_ - host(rank).moved_at >= kSimThreshold;
      if (has_waited && !threads_ && random(rank) % 2) end(rank, SIGABRT);
    }
    if (ending == Ending::torn_down) now_ += 0.6;
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      if (host(rank).ended) continue;
      file(rank).last_beat = time_of(rank);
      end(rank, SIGTERM);
    }
  }

  // One file for all ranks: one clock, one ring, handles and threads of their own.
  TraceFile merged() {
    TraceFile all = file(0);
    all.header.env_rank = all.header.env_world_size = -1;
    all.comms.clear(), all.calls.clear(), all.threads.clear(), all.snapshots.clear();
    all.exit_time = {};
    struct Placed {
      int rank;
      size_t index;
    };
    std::vector<Placed> order;
    for (int rank = 0; rank < schedule_.ranks; rank++)
      for (size_t i = 0; i < file(rank).calls.size(); i++) order.push_back({rank, i});
    const auto called = [&](const Placed& at) { return file(at.rank).calls[at.index].called.mono_ns; };
    std::stable_sort(order.begin(), order.end(),
                     [&](const Placed& a, const Placed& b) { return called(a) < called(b); });
    std::vector<std::vector<uint64_t>> event_of(static_cast<size_t>(schedule_.ranks));
    for (int rank = 0; rank < schedule_.ranks; rank++)
      event_of[static_cast<size_t>(rank)].resize(file(rank).calls.size());
    for (size_t i = 0; i < order.size(); i++) event_of[static_cast<size_t>(order[i].rank)][order[i].index] = i;
    const auto serial_of = [](int rank, uint32_t serial) {
      return serial ? serial + static_cast<uint32_t>(rank) * 1000 : 0;
    };
    const auto renumber = [&](int rank, Call& call) {
      call.event = event_of[static_cast<size_t>(rank)][call.event];
      call.comm = serial_of(rank, call.comm);
      call.new_comm = serial_of(rank, call.new_comm);
      call.stream += static_cast<uint64_t>(rank) * 100;
      if (call.group) call.group += static_cast<uint32_t>(rank) * 100000;
    };
    for (const Placed& at : order) {
      all.calls.push_back(file(at.rank).calls[at.index]);
      renumber(at.rank, all.calls.back());
    }
    bool all_ended = true;
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      TraceFile& own = file(rank);
      all_ended = all_ended && host(rank).ended;
      for (CommInfo& comm : own.comms) {
        comm.serial = serial_of(rank, comm.serial);
        comm.parent_serial = serial_of(rank, comm.parent_serial);
        for (Call& call : comm.recent) renumber(rank, call);
        all.comms.push_back(std::move(comm));
      }
      trace::ThreadInfo thread = own.threads.front();
      if (thread.open_call) thread.open_call = event_of[static_cast<size_t>(rank)][*thread.open_call];
      all.threads.push_back(std::move(thread));
      for (trace::Snapshot& shot : own.snapshots) all.snapshots.push_back(std::move(shot));
      if (rank) all.symbols.insert(all.symbols.end(), own.symbols.begin(), own.symbols.end());
      if (own.exit_time.mono_ns > all.exit_time.mono_ns)
        all.exit_kind = own.exit_kind, all.exit_code = own.exit_code, all.exit_time = own.exit_time;
      if (own.last_call.mono_ns > all.last_call.mono_ns) all.last_call = own.last_call;
      if (own.last_beat.mono_ns > all.last_beat.mono_ns) all.last_beat = own.last_beat;
    }
    all.events = all.calls.size();
    if (!all_ended) all.exit_kind = {}, all.exit_code = 0, all.exit_time = {};
    return all;
  }

  void close(const Loss& loss, Ending ending) {
    for (int rank = 0; rank < schedule_.ranks; rank++) {
      Host& h = host(rank);
      TraceFile& at = file(rank);
      out_.waits[static_cast<size_t>(rank)] = !h.ended && !h.asleep && h.ready_at <= now_;
      out_.last_moved.push_back(h.moved_at);
      for (CommInfo& each : at.comms) {
        each.coll_started = each.coll_started.value_or(0);
        each.coll_completed = each.coll_completed.value_or(0);
      }
      if (!h.ended) {
        at.last_beat = time_of(rank);
        snapshot(rank);
      }
    }
    end_by_others(ending);
    const auto keep = [&](TraceFile at, bool ended) {
      lose(at, loss);
      Process process;
      process.liveness = ended ? trace::Liveness::dead : trace::Liveness::alive;
      process.file = std::move(at);
      out_.processes.push_back(std::move(process));
    };
    if (threads_) {
      const bool all_ended = std::all_of(hosts_.begin(), hosts_.end(), [](const Host& h) { return h.ended; });
      return keep(merged(), all_ended);
    }
    for (int rank = 0; rank < schedule_.ranks; rank++)
      if (!loss.no_trace.count(rank)) keep(std::move(file(rank)), host(rank).ended);
  }

  const Schedule& schedule_;
  uint64_t seed_;
  bool threads_;
  double now_ = 0;
  std::vector<Host> hosts_;
  std::vector<TraceFile> files_;
  std::vector<std::set<int>> joined_;
  std::map<std::pair<int, uint64_t>, std::vector<const Act*>> rows_;
  std::map<Edge, Halves> halves_;
  Execution out_;
};

}  // namespace

Execution execute(const Schedule& schedule, uint64_t seed, double cut, const Loss& loss, Ending ending, bool threads) {
  return Machine(schedule, seed, threads).run(cut, loss, ending);
}

}  // namespace lockstep::test
