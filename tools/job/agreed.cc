// SPDX-License-Identifier: MIT
#include "tools/job/agreed.h"

#include <algorithm>
#include <unordered_set>

#include "interpose/abi/functions.h"
#include "tools/job/lookup.h"
#include "tools/job/match.h"

namespace lockstep {
namespace {

using abi::FunctionKind;
using trace::Call;
using trace::CommInfo;
using trace::TraceFile;

constexpr size_t kNotable = 4;       // blocks that differ, of one communicator or edge: the first one counts
constexpr size_t kSignatures = 256;  // of one communicator, of which the first call stays
constexpr size_t kFirstSteps = 16, kNewestSteps = 64, kMarksWithoutSteps = 1024;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
template <class... Rest>
uint64_t mix(uint64_t first, Rest... rest) {
  return mix(first ^ mix(static_cast<uint64_t>(rest)...));
}

// What Signature compares, as a number.
uint64_t signature_sum(const Call& call) {
  const abi::Fn fn =
      call.fn == static_cast<uint16_t>(abi::Fn::Bcast) ? abi::Fn::Broadcast : static_cast<abi::Fn>(call.fn);
  // All operators made at run time count as one.
  const int redop = abi::has_role(fn, abi::ArgRole::redop) ? std::clamp(call.redop, -1, 5) : 0;
  const int root = abi::has_role(fn, abi::ArgRole::root) ? call.peer : 0;
  return mix(static_cast<uint64_t>(fn), call.count, call.dtype, static_cast<uint64_t>(redop),
             static_cast<uint64_t>(root));
}

// Returned well, and nothing special about it.
bool is_plain(const Call& call) {
  constexpr uint16_t kHarmless = trace::kInPlace | trace::kTold | trace::kInGroup | trace::kZeroCount;
  return call.returned && call.result == 0 && (call.flags & ~kHarmless) == 0;
}

bool is_zero(const Call& call) { return call.flags & trace::kZeroCount || (call.seq == UINT64_MAX && call.count == 0); }

// Calls that no rule looks at once they have come back well.
bool tells_nothing(FunctionKind kind) {
  switch (kind) {
    case FunctionKind::local:
    case FunctionKind::query:
    case FunctionKind::param:
    case FunctionKind::memory:
    case FunctionKind::redop:
    case FunctionKind::group_start:
    case FunctionKind::group_end:
      return true;
    default:
      return false;
  }
}

void leave_out_marks(TraceFile& file) {
  std::vector<trace::MarkEvent>& marks = file.marks;
  std::vector<size_t> steps;
  for (size_t i = 0; i < marks.size(); i++)
    if (marks[i].kind == trace::kMarkStep) steps.push_back(i);
  size_t from = 0, to = marks.size() - std::min(marks.size(), kMarksWithoutSteps);
  if (!steps.empty()) {
    if (steps.size() <= kFirstSteps + kNewestSteps) return marks.shrink_to_fit();
    from = steps[kFirstSteps], to = steps[steps.size() - kNewestSteps];
  }
  marks.erase(marks.begin() + static_cast<std::ptrdiff_t>(from), marks.begin() + static_cast<std::ptrdiff_t>(to));
  marks.shrink_to_fit();
}

}  // namespace

// One file on its way: what it has of each communicator and edge, and what of it may go.
class AgreedCalls::File {
 public:
  File(AgreedCalls& all, TraceFile& file) : all_(all), file_(file), goes_(file.calls.size()), done_(file.calls.size()) {
    for (const CommInfo& info : file_.comms) {
      const auto found = all_.comms_.find(info.id);
      if (info.id == 0 || found == all_.comms_.end() || !found->second.usable) continue;
      Ours& comm = ours_[info.serial];
      comm.info = &info;
      comm.all = &found->second;
      comm.end = std::min(found->second.end, all_.end_of(info));
    }
    for (const trace::Digest& digest : file_.digests)
      if ((digest.output && has_one_result(digest.fn)) || is_p2p_function(digest.fn))
        digests_[digest.call] += mix(digest.value, digest.bytes);
    for (size_t i = 0; i < file_.calls.size(); i++) sort_call(i);
    for (auto& [serial, comm] : ours_) {
      settle_rows(comm);
      settle_messages(comm);
    }
  }

  // Under the lock of `all`.
  void compare() {
    for (const auto& [rows, block, sum] : row_sums_) all_.compare(rows->rows, block, sum);
    for (const auto& [edge, block, sum] : edge_sums_) all_.compare(all_.edges_[edge], block, sum);
  }

  std::map<uint32_t, uint64_t> leave_out() {
    for (auto& [serial, comm] : ours_) keep_first_overlap(comm);
    keep_whole_groups();
    keep_newest();
    keep_whole_groups();
    std::map<uint32_t, uint64_t> messages;
    std::vector<Call> kept;
    kept.reserve(static_cast<size_t>(std::count(goes_.begin(), goes_.end(), false)));
    std::unordered_set<uint64_t> gone;  // events, of which digests speak
    for (size_t i = 0; i < goes_.size(); i++) {
      if (!goes_[i]) {
        kept.push_back(call(i));
        continue;
      }
      if (kind_of(call(i)) == FunctionKind::p2p) messages[call(i).comm]++;
      if (!file_.digests.empty()) gone.insert(call(i).event);
    }
    file_.calls = std::move(kept);
    std::vector<trace::Digest>& digests = file_.digests;
    digests.erase(std::remove_if(digests.begin(), digests.end(),
                                 [&](const trace::Digest& digest) { return gone.count(digest.call) != 0; }),
                  digests.end());
    digests.shrink_to_fit();
    return messages;
  }

 private:
  struct Ours {
    const CommInfo* info = nullptr;
    Comm* all = nullptr;
    uint64_t end = 0;
    std::vector<size_t> rows;      // collectives that took a number; indices of calls
    std::vector<size_t> zeros;     // that took none
    std::vector<size_t> messages;  // in order of calling
  };

  const Call& call(size_t i) const { return file_.calls[i]; }
  static bool is_p2p_function(uint16_t fn) {
    const abi::FunctionInfo* info = abi::find_function(fn);
    return info && info->kind == FunctionKind::p2p;
  }
  uint64_t digest_sum(const Call& call) const {
    const auto found = digests_.find(call.event);
    return found == digests_.end() ? 0 : found->second;
  }

  void sort_call(size_t i) {
    const FunctionKind kind = kind_of(call(i));
    if (tells_nothing(kind)) goes_[i] = is_plain(call(i));
    if (kind != FunctionKind::collective && kind != FunctionKind::p2p) return;
    const auto found = ours_.find(call(i).comm);
    if (found == ours_.end() || has_failed(call(i)) || call(i).flags & trace::kGivenBack) return;
    if (kind == FunctionKind::p2p) {
      found->second.messages.push_back(i);
    } else if (is_zero(call(i))) {
      found->second.zeros.push_back(i);
    } else if (call(i).seq != UINT64_MAX) {
      found->second.rows.push_back(i);
    }
  }

  void sort_by_number(std::vector<size_t>& calls) const {
    std::stable_sort(calls.begin(), calls.end(), [&](size_t a, size_t b) { return call(a).seq < call(b).seq; });
  }

  // Calls visit(first, block) for each block that is whole among these, which are sorted by number.
  template <class Visit>
  void each_whole_block(const std::vector<size_t>& sorted, Visit visit) const {
    const uint64_t size = all_.block_;
    for (size_t i = 0; i < sorted.size();) {
      const uint64_t number = call(sorted[i]).seq;
      const bool whole =
          number % size == 0 && sorted.size() - i >= size && call(sorted[i + size - 1]).seq == number + size - 1;
      if (whole) visit(i, number / size);
      i += whole ? size : 1;
    }
  }

  void settle_rows(Ours& comm) {
    sort_by_number(comm.rows);
    // A call with count 0 stands in front of the first row called after it.
    std::vector<uint64_t> latest;  // event of the rows up to here
    for (const size_t row : comm.rows) latest.push_back(std::max(latest.empty() ? 0 : latest.back(), call(row).event));
    std::multimap<uint64_t, size_t> zeros;  // by row
    for (const size_t zero : comm.zeros) {
      const auto behind = std::upper_bound(latest.begin(), latest.end(), call(zero).event);
      if (behind != latest.end())
        zeros.emplace(call(comm.rows[static_cast<size_t>(behind - latest.begin())]).seq, zero);
    }
    std::unordered_set<uint64_t> signatures;
    std::vector<uint64_t> sums;
    std::vector<bool> is_first;
    for (const size_t row : comm.rows) {
      sums.push_back(signature_sum(call(row)));
      is_first.push_back(signatures.size() < kSignatures && signatures.insert(sums.back()).second);
    }
    each_whole_block(comm.rows, [&](size_t first, uint64_t block) {
      if ((block + 1) * all_.block_ > comm.end) return;
      // The block before those that nobody compares stays: if their first row differs, this one holds what all agreed
      // on.
      const bool stays = (all_.settled_ && comm.all->rows.stays(block)) || (block + 2) * all_.block_ > comm.end;
      uint64_t sum = 0;
      for (size_t i = first; i < first + all_.block_; i++) {
        const Call& row = call(comm.rows[i]);
        uint64_t in_front = 0;
        const auto [from, to] = zeros.equal_range(row.seq);
        for (auto zero = from; zero != to; ++zero) {
          in_front += signature_sum(call(zero->second));
          goes_[zero->second] = !stays && is_plain(call(zero->second));
        }
        sum += mix(row.seq, sums[i], in_front, digest_sum(row));
        goes_[comm.rows[i]] = !stays && !is_first[i] && is_plain(row);
      }
      row_sums_.emplace_back(comm.all, block, sum);
    });
  }

  void settle_messages(Ours& comm) {
    if (!comm.info->p2p_completed || comm.messages.empty()) return;
    const uint64_t lost = comm.info->p2p_called - std::min<uint64_t>(comm.info->p2p_called, comm.messages.size());
    std::map<Edge, std::vector<size_t>> edges;
    for (size_t i = 0; i < comm.messages.size(); i++) {
      const Call& message = call(comm.messages[i]);
      if (message.seq == UINT64_MAX) return;
      done_[comm.messages[i]] = lost + i < *comm.info->p2p_completed;
      const int self = comm.info->rank;
      const bool sends = message.fn == static_cast<uint16_t>(abi::Fn::Send);
      if (message.peer != self)
        edges[{comm.info->id, sends ? self : message.peer, sends ? message.peer : self}].push_back(comm.messages[i]);
    }
    for (auto& [edge, messages] : edges) settle_edge(edge, messages);
  }

  void settle_edge(const Edge& edge, std::vector<size_t>& messages) {
    sort_by_number(messages);
    uint64_t end = 0;  // numbers below are completed
    for (const size_t i : messages)
      if (done_[i]) end = call(i).seq + 1;
    end -= std::min(end, all_.kept_);
    const auto known = all_.settled_ ? all_.edges_.find(edge) : all_.edges_.end();
    each_whole_block(messages, [&](size_t first, uint64_t block) {
      const bool stays = (all_.settled_ && known != all_.edges_.end() && known->second.stays(block)) ||
                         (block + 1) * all_.block_ > end;
      uint64_t sum = 0;
      for (size_t i = first; i < first + all_.block_; i++) {
        const Call& message = call(messages[i]);
        sum += mix(message.seq, message.count * abi::dtype_size(message.dtype), digest_sum(message));
        goes_[messages[i]] = !stays && done_[messages[i]] && is_plain(message);
      }
      edge_sums_.emplace_back(edge, block, sum);
    });
  }

  // See two_threads() in rule_setup.cc, which looks for just these.
  void keep_first_overlap(const Ours& comm) {
    std::vector<size_t> calls = comm.rows;
    calls.insert(calls.end(), comm.messages.begin(), comm.messages.end());
    std::sort(calls.begin(), calls.end());
    const auto end_of = [](const Call& call) { return call.returned ? call.return_time.mono_ns : INT64_MAX; };
    size_t latest = SIZE_MAX;
    for (const size_t i : calls) {
      if (latest != SIZE_MAX && call(latest).tid != call(i).tid && end_of(call(latest)) > call(i).called.mono_ns) {
        goes_[latest] = goes_[i] = false;
        return;
      }
      if (latest == SIZE_MAX || end_of(call(i)) > end_of(call(latest))) latest = i;
    }
  }

  void keep_whole_groups() {
    std::unordered_set<uint32_t> stay;
    for (size_t i = 0; i < goes_.size(); i++)
      if (call(i).group && !goes_[i]) stay.insert(call(i).group);
    for (size_t i = 0; i < goes_.size() && !stay.empty(); i++)
      if (call(i).group && stay.count(call(i).group)) goes_[i] = false;
  }

  void keep_newest() {
    std::map<std::tuple<uint32_t, uint64_t, uint32_t>, size_t> newest;
    for (size_t i = 0; i < goes_.size(); i++)
      if (goes_[i]) newest[{call(i).comm, call(i).stream, call(i).tid}] = i;
    for (const auto& [where, i] : newest) goes_[i] = false;
  }

  AgreedCalls& all_;
  TraceFile& file_;
  std::vector<bool> goes_, done_;                   // by call
  std::map<uint32_t, Ours> ours_;                   // by serial
  std::unordered_map<uint64_t, uint64_t> digests_;  // by call
  std::vector<std::tuple<Comm*, uint64_t, uint64_t>> row_sums_;
  std::vector<std::tuple<Edge, uint64_t, uint64_t>> edge_sums_;
};

// The first blocks that differ stay, and those around them, since rules look at the rows before and behind.
bool AgreedCalls::Blocks::stays(uint64_t block) const {
  const auto near = differ.lower_bound(block - std::min<uint64_t>(block, 1));
  return near != differ.end() && *near <= block + 1;
}

void AgreedCalls::add_head(const TraceFile& head) {
  std::map<uint64_t, std::set<int>> ranks_of;
  for (const CommInfo& info : head.comms) {
    if (info.id == 0) continue;
    Comm& comm = comms_[info.id];
    if (comm.nranks < 0) comm.nranks = info.nranks;
    // The same rank again: another communicator of this id. Others: ranks that are threads.
    const bool again = !ranks_of[info.id].insert(info.rank).second;
    comm.usable &= !again && info.nranks == comm.nranks;
    comm.end = std::min(comm.end, end_of(info));
  }
}

uint64_t AgreedCalls::end_of(const CommInfo& info) const {
  const uint64_t open = std::min(info.coll_completed.value_or(UINT64_MAX), info.coll_called);
  return open - std::min(open, kept_);
}

void AgreedCalls::compare(Blocks& known, uint64_t block, uint64_t sum) {
  if (known.sums.try_emplace(block, sum).first->second == sum) return;
  differs_ = true;
  known.differ.insert(block);
  if (known.differ.size() > kNotable) known.differ.erase(std::prev(known.differ.end()));
}

std::map<uint32_t, uint64_t> AgreedCalls::shrink(TraceFile& file) {
  File one(*this, file);
  if (!settled_) {
    const std::lock_guard<std::mutex> guard(lock_);
    one.compare();
  }
  leave_out_marks(file);
  file.host_calls = {};  // that a thread is in one now stands in its ThreadInfo
  return one.leave_out();
}

bool AgreedCalls::keep_what_differs() {
  settled_ = true;
  return std::exchange(differs_, false);
}

}  // namespace lockstep
