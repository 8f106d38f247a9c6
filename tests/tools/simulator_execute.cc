// SPDX-License-Identifier: MIT
//
// The hosts of the machine: time, what each act of a program does, what is recorded of it, and what happens at the cut.

#include <signal.h>

#include <algorithm>
#include <cmath>

#include "tests/tools/simulator_machine.h"
#include "tools/job/match.h"

namespace lockstep::test {

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb;
  return x ^ x >> 31;
}

Execution Machine::run(double cut, const Loss& loss, Ending ending) {
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

// Each process has a monotonic clock of its own; the hosts' wall clocks differ a little.
trace::Time Machine::time_of(int rank) const {
  if (threads_) rank = 0;
  const int64_t ns = static_cast<int64_t>((now_ + 1000) * 1e9);
  return {ns + 5'000'000'000LL * rank, 1'800'000'000'000'000'000LL + ns + 20'000'000LL * (rank % 3)};
}

void Machine::open_file(int rank) {
  file(rank) = new_file(rank, schedule_.ranks);
  file(rank).header.opened_mono_ns = time_of(rank).mono_ns;
  file(rank).header.opened_wall_ns = time_of(rank).wall_ns;
}

bool Machine::step_all() {
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

double Machine::next_event() {
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

bool Machine::step_host(int rank) {
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
      if (!tear_down(rank, act)) return false;
      break;
    case Do::sleep:
      h.asleep = true;
      return false;
    case Do::leave:
    case Do::die:
      end(rank, act.what == Do::die ? act.peer : 0, static_cast<int>(act.count));
      return true;
    case Do::fails:
      record(rank, act.fn, &act).result = act.peer;
      break;
    case Do::init_fails:
      if (!fail_to_join(rank, act)) return false;
      break;
  }
  h.at++;
  return true;
}

bool Machine::finish(int rank) {
  if (schedule_.stays) {
    host(rank).asleep = true;
    out_.finished[static_cast<size_t>(rank)] = true;
    return false;
  }
  out_.finished[static_cast<size_t>(rank)] = true;
  end(rank, 0);
  return true;
}

void Machine::end(int rank, int signal, int status) {
  host(rank).ended = true;
  TraceFile& at = file(rank);
  at.last_beat = time_of(rank);
  if (signal == SIGKILL) {
    at.supervisor = trace::SupervisorState::gone;
    at.supervisor_time = time_of(rank);
    return;
  }
  at.exit_kind = signal ? trace::ExitKind::fatal_signal : trace::ExitKind::exit;
  at.exit_code = signal ? signal : status;
  at.exit_time = time_of(rank);
}

Call& Machine::record(int rank, Fn fn, const Act* act) {
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

void Machine::leave_open(int rank) {
  TraceFile& at = file(rank);
  at.calls.back().returned = false;
  host(rank).open_call = at.calls.size() - 1;
  at.threads.front().open_call = at.calls.back().event;
}

void Machine::come_back(int rank) {
  TraceFile& at = file(rank);
  Call& call = at.calls[*host(rank).open_call];
  call.returned = true;
  call.return_time = at.last_call = time_of(rank);
  host(rank).open_call.reset();
  at.threads.front().open_call.reset();
}

bool Machine::room(int rank, int stream) {
  return host(rank).streams[stream].size() < static_cast<size_t>(schedule_.queue_depth);
}

// False = still inside the call.
bool Machine::call(int rank, const Act& act) {
  Host& h = host(rank);
  if (h.open_call) {
    if (!room(rank, act.stream)) return false;
    come_back(rank);
    return true;
  }
  reach(rank, act.event);
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

void Machine::remember(CommInfo& at, const Call& call) {
  at.recent.push_back(call);
  if (at.recent.size() > trace::kRecentCalls) at.recent.erase(at.recent.begin());
}

// All messages of a group on one communicator are one kernel.
bool Machine::end_group(int rank) {
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

void Machine::reach(int rank, int event) {
  if (out_.reached.size() <= static_cast<size_t>(event)) out_.reached.resize(static_cast<size_t>(event) + 1);
  out_.reached[static_cast<size_t>(event)].insert(rank);
}

// Where its host is, or the oldest work that is not done.
int Machine::done_to(int rank) {
  const Host& h = host(rank);
  const std::vector<Act>& program = schedule_.programs[static_cast<size_t>(rank)];
  int event = h.at < program.size() ? program[h.at].event : std::numeric_limits<int>::max();
  for (const auto& [stream, queue] : h.streams)
    for (const Kernel& kernel : queue) event = std::min(event, kernel.act->event);
  return event;
}

void Machine::snapshot(int rank) {
  const Host& h = host(rank);
  const std::vector<Act>& program = schedule_.programs[static_cast<size_t>(rank)];
  const bool in_wait = !h.asleep && h.ready_at <= now_ && h.at < program.size() && program[h.at].what == Do::sync;
  file(rank).last_beat = time_of(rank);
  add_snapshot(file(rank), h.open_call ? "ncclAllReduce" : in_wait ? "cudaStreamSynchronize" : "train_step");
}

// Watchdogs give up where a rank has waited for long; a moment later somebody notices, and ends what is left.
void Machine::end_by_others(Ending ending) {
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

void Machine::close(const Loss& loss, Ending ending) {
  for (int rank = 0; rank < schedule_.ranks; rank++) {
    Host& h = host(rank);
    TraceFile& at = file(rank);
    out_.waits[static_cast<size_t>(rank)] = !h.ended && !h.asleep && h.ready_at <= now_;
    out_.last_moved.push_back(h.moved_at);
    out_.done_to.push_back(done_to(rank));
    for (CommInfo& each : at.comms) {
      each.coll_started = each.coll_started.value_or(0);
      each.coll_completed = each.coll_completed.value_or(0);
      each.p2p_completed = each.p2p_completed.value_or(0);
    }
    if (!h.ended) snapshot(rank);
  }
  for (const Planted& what : schedule_.planted) out_.planted = plant(what, files_) && out_.planted;
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
    return keep(merged(files_, all_ended), all_ended);
  }
  for (int rank = 0; rank < schedule_.ranks; rank++)
    if (!loss.no_trace.count(rank)) keep(std::move(file(rank)), host(rank).ended);
}

Execution execute(const Schedule& schedule, uint64_t seed, double cut, const Loss& loss, Ending ending, bool threads) {
  return Machine(schedule, seed, threads).run(cut, loss, ending);
}

}  // namespace lockstep::test
