// SPDX-License-Identifier: MIT
#include "tools/job/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "interpose/abi/functions.h"
#include "tools/job/lookup.h"

namespace lockstep {
namespace {

using abi::ArgRole;
using abi::Fn;
using abi::FunctionKind;
using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

Fn canonical(uint16_t fn) { return fn == static_cast<uint16_t>(Fn::Bcast) ? Fn::Broadcast : static_cast<Fn>(fn); }

// Groups of this process that no call of ncclGroupEnd has closed yet: what is in them is not launched. Only groups
// whose calls are on record can be judged; a group lost with the ring's tail is older than everything on record, so
// closed.
struct OpenGroups {
  std::unordered_map<uint32_t, uint64_t> last_in_group;  // group -> event of the newest call in it
  std::unordered_map<uint32_t, bool> closed;

  explicit OpenGroups(const TraceFile& file) {
    std::unordered_map<uint32_t, uint32_t> group_of_thread;
    for (const Call& call : file.calls) {
      uint32_t& current = group_of_thread[call.tid];
      if (current && current != call.group) closed[current] = true;  // the thread went on outside it
      current = call.group;
      if (kind_of(call) == FunctionKind::group_end && call.group && call.group_depth <= 1) closed[call.group] = true;
      if (call.group) last_in_group[call.group] = call.event;
    }
  }
  bool holds(const Call& call) const {
    if (!(call.flags & trace::kInGroup) || call.group == 0) return false;
    const auto seen = last_in_group.find(call.group);
    return seen != last_in_group.end() && closed.count(call.group) == 0;
  }
};

struct CallsByComm {
  std::unordered_map<uint32_t, std::vector<const Call*>> of;
  explicit CallsByComm(const TraceFile& file) {
    for (const Call& call : file.calls)
      if (call.comm) of[call.comm].push_back(&call);
  }
};

void take_call(Member& member, const Call& call, const OpenGroups& groups) {
  if (has_failed(call) || call.flags & trace::kGivenBack) return;
  if (is_p2p(call)) {
    if (groups.holds(call)) {
      member.p2p_held++;
    } else {
      member.p2p.push_back(&call);
    }
  }
  if (!is_collective(call)) return;
  if (call.flags & trace::kZeroCount || (call.seq == UINT64_MAX && call.count == 0)) {
    member.zero_calls.push_back(&call);
    return;
  }
  if (call.seq != UINT64_MAX) member.collectives.push_back(&call);
}

// A zero call's place in the order: before the first numbered collective called after it.
void place_zero_calls(Member& member) {
  for (const Call* zero : member.zero_calls) {
    const auto next = std::find_if(member.collectives.begin(), member.collectives.end(),
                                   [&](const Call* call) { return call->event > zero->event; });
    member.zero_next_seq.push_back(next == member.collectives.end() ? member.called : (*next)->seq);
  }
}

Member make_member(const Run& run, size_t rank, const CommInfo& info, const CallsByComm& calls,
                   const OpenGroups& groups) {
  Member member;
  member.rank = rank;
  member.comm_rank = info.rank;
  member.info = &info;
  member.file = &run.process_of(rank).file;
  if (const auto found = calls.of.find(info.serial); found != calls.of.end())
    for (const Call* call : found->second) take_call(member, *call, groups);
  // The fixed area remembers what the ring may have lost.
  for (const Call& call : info.recent) {
    const auto known = [&](const Call* other) { return other->event == call.event; };
    if (std::none_of(member.collectives.rbegin(), member.collectives.rend(), known) && is_collective(call) &&
        call.seq != UINT64_MAX && call.seq < info.coll_called && call.count != 0 && !member.call_at(call.seq))
      member.collectives.push_back(&call);
  }
  const auto by_seq = [](const Call* a, const Call* b) { return a->seq < b->seq; };
  std::stable_sort(member.collectives.begin(), member.collectives.end(), by_seq);

  const std::map<uint32_t, uint64_t>& left_out = run.process_of(rank).messages_left_out;
  if (const auto found = left_out.find(info.serial); found != left_out.end()) member.p2p_left_out = found->second;

  member.called = info.coll_called;
  if (!member.collectives.empty()) member.called = std::max(member.called, member.collectives.back()->seq + 1);
  member.launched = member.called;
  for (auto at = member.collectives.rbegin(); at != member.collectives.rend() && groups.holds(**at); ++at)
    member.launched = (*at)->seq;
  place_zero_calls(member);
  return member;
}

// A name that tells it apart: the program's, else "world" for the one that spans the job, else a piece of its id.
void name_comms(const Run& run, Table& table) {
  for (size_t i = 0; i < table.comms.size(); i++) {
    Comm& comm = table.comms[i];
    for (const Member& member : comm.members)
      if (comm.name.empty()) comm.name = member.info->name;
    if (!comm.name.empty()) continue;
    const bool spans_job = comm.nranks <= 0 || comm.nranks >= run.world_size;
    comm.name = i == 0 && spans_job ? "world" : "comm-" + comm_id_text(comm).substr(0, 8);
  }
}

}  // namespace

bool has_failed(const Call& call) { return call.returned && call.result != 0 && call.result != 7 /* ncclInProgress */; }

bool is_collective(const Call& call) { return kind_of(call) == FunctionKind::collective; }
bool is_p2p(const Call& call) { return kind_of(call) == FunctionKind::p2p; }

bool has_one_result(uint16_t fn) {
  switch (static_cast<Fn>(fn)) {
    case Fn::AllReduce:
    case Fn::AllGather:
    case Fn::Broadcast:
    case Fn::Bcast:
      return true;
    default:
      return false;
  }
}

std::string op_name(const Call& call) {
  const abi::FunctionInfo* info = abi::find_function(canonical(call.fn));
  return info ? info->name : fmt::format("function {}", call.fn);
}

Signature signature_of(const Call& call) {
  const Fn fn = canonical(call.fn);
  Signature signature;
  signature.op = op_name(call);
  signature.count = call.count;
  signature.dtype = abi::dtype_name(call.dtype);
  if (abi::has_role(fn, ArgRole::redop)) signature.redop = abi::redop_name(call.redop);
  if (abi::has_role(fn, ArgRole::root)) signature.root = call.peer;
  return signature;
}

const Call* Member::call_at(uint64_t seq) const {
  const auto at = std::lower_bound(collectives.begin(), collectives.end(), seq,
                                   [](const Call* call, uint64_t wanted) { return call->seq < wanted; });
  return at != collectives.end() && (*at)->seq == seq ? *at : nullptr;
}

std::string comm_id_text(const Comm& comm) { return fmt::format("{:016x}", comm.id); }

Table match(const Run& run) {
  std::map<std::pair<uint64_t, uint32_t>, Comm> comms;
  std::vector<std::pair<uint64_t, uint32_t>> order;
  for (size_t rank = 0; rank < run.ranks.size(); rank++) {
    const Rank& owner = run.ranks[rank];
    const TraceFile& file = run.processes[owner.process].file;
    const CallsByComm calls(file);
    const OpenGroups groups(file);
    std::map<uint64_t, uint32_t> generation;
    for (const CommInfo& info : file.comms) {
      if (info.id == 0 || std::find(owner.comms.begin(), owner.comms.end(), info.serial) == owner.comms.end()) continue;
      const std::pair<uint64_t, uint32_t> key{info.id, generation[info.id]++};
      if (!comms.count(key)) order.push_back(key);
      Comm& comm = comms[key];
      comm.id = info.id;
      comm.generation = key.second;
      comm.parent_id = std::max(comm.parent_id, info.parent_id);
      comm.nranks = std::max(comm.nranks, info.nranks);
      comm.members.push_back(make_member(run, rank, info, calls, groups));
    }
  }
  Table table;
  for (const auto& key : order) {
    Comm& comm = comms[key];
    std::stable_sort(comm.members.begin(), comm.members.end(),
                     [](const Member& a, const Member& b) { return a.comm_rank < b.comm_rank; });
    table.comms.push_back(std::move(comm));
  }
  const auto made = [](const Comm& comm) { return comm.members.front().info->created.wall_ns; };
  std::stable_sort(table.comms.begin(), table.comms.end(), [&](const Comm& a, const Comm& b) {
    return a.nranks != b.nranks ? a.nranks > b.nranks : made(a) != made(b) ? made(a) < made(b) : a.id < b.id;
  });
  name_comms(run, table);
  return table;
}

}  // namespace lockstep
