// SPDX-License-Identifier: MIT
//
// The pieces of the tensor begin with what is owned; copies are laid against them, and fill what nobody owns.

#include "verify/assemble/assemble.h"

#include <algorithm>
#include <cstring>

namespace lockstep::verify {
namespace {

using dump::Placement;
using dump::Shard;

std::string element_text(const GlobalTensor& tensor, int64_t element) {
  return "element " + dump::shape_text(dump::index_of(element, tensor.shape));
}

// What two shards say of one tensor must agree.
bool agree(const std::vector<Shard>& shards, const GlobalTensor& tensor, std::vector<Fault>& faults) {
  const Shard& first = shards.front();
  const bool partial = first.placement.kind == Placement::Kind::partial;
  const auto fault = [&](const Shard& shard, const std::string& what) {
    faults.push_back({Fault::Kind::shape, {first.rank, shard.rank}, -1, 0, what});
    return false;
  };
  const auto says = [](const Shard& shard, const std::string& what) {
    return "rank " + std::to_string(shard.rank) + " " + what;
  };
  for (const Shard& shard : shards) {
    if (shard.placement.global != tensor.shape)
      return fault(shard, "its global shape is " + says(first, dump::shape_text(tensor.shape)) + ", " +
                              says(shard, dump::shape_text(shard.placement.global)));
    if (shard.stored->dtype != tensor.dtype)
      return fault(shard, "its dtype is " + says(first, dump::name_of(tensor.dtype)) + ", " +
                              says(shard, dump::name_of(shard.stored->dtype)));
    if ((shard.placement.kind == Placement::Kind::partial) != partial)
      return fault(shard, "it is " + says(first, dump::name_of(first.placement.kind)) + ", " +
                              says(shard, dump::name_of(shard.placement.kind)) +
                              "; a sum has summands on all its ranks");
  }
  return true;
}

// Adds runs to pieces, both in order; what both have is given to `common`, which sees the pieces that were there first.
template <class Common>
void lay(std::vector<Piece>& pieces, const std::vector<Piece>& runs, size_t bytes, Common common) {
  std::vector<Piece> fresh;
  size_t at = 0;
  for (const Piece& run : runs) {
    while (at < pieces.size() && pieces[at].end <= run.begin) at++;
    int64_t done = run.begin;
    const auto part = [&](int64_t begin, int64_t end) {
      return Piece{begin, end, run.rank, run.data + static_cast<size_t>(begin - run.begin) * bytes};
    };
    for (size_t i = at; i < pieces.size() && pieces[i].begin < run.end; i++) {
      const int64_t from = std::max(run.begin, pieces[i].begin), to = std::min(run.end, pieces[i].end);
      if (done < from) fresh.push_back(part(done, from));
      common(pieces[i], part(from, to));
      done = to;
    }
    if (done < run.end) fresh.push_back(part(done, run.end));
  }
  if (fresh.empty()) return;
  const auto middle = static_cast<std::ptrdiff_t>(pieces.size());
  pieces.insert(pieces.end(), fresh.begin(), fresh.end());
  std::inplace_merge(pieces.begin(), pieces.begin() + middle, pieces.end(),
                     [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
}

void own(Assembled& out, const std::vector<Shard>& shards) {
  Fault overlap{Fault::Kind::overlap, {}, -1, 0, ""};
  for (const Shard& shard : shards) {
    if (shard.placement.kind != Placement::Kind::owned) continue;
    lay(out.tensor.pieces, runs_of(shard), dump::size_of(out.tensor.dtype),
        [&](const Piece& first, const Piece& second) {
          overlap.count += second.end - second.begin;
          if (overlap.element >= 0) return;
          overlap.element = second.begin;
          overlap.ranks = {first.rank, second.rank};
        });
  }
  if (overlap.element < 0) return;
  overlap.sentence = std::to_string(overlap.count) + (overlap.count == 1 ? " element is" : " elements are") +
                     " owned twice, first " + element_text(out.tensor, overlap.element) + " by ranks " +
                     std::to_string(overlap.ranks[0]) + " and " + std::to_string(overlap.ranks[1]);
  out.faults.push_back(std::move(overlap));
}

struct Difference {
  int rank, other;  // `other` is the one that was there first
  int64_t element;
};

// The first element of a copy that differs; -1: none does.
int64_t first_difference(const Piece& first, const Piece& copy, size_t bytes) {
  const std::byte* const a = first.data + static_cast<size_t>(copy.begin - first.begin) * bytes;
  const size_t count = static_cast<size_t>(copy.end - copy.begin);
  if (std::memcmp(a, copy.data, count * bytes) == 0) return -1;
  const auto at = std::mismatch(a, a + count * bytes, copy.data).first - a;
  return copy.begin + at / static_cast<int64_t>(bytes);
}

// Where all copies are of the same elements, ranks that agree make a group, and a smaller one is odd.
std::vector<std::vector<int>> groups_of(const std::vector<Shard>& shards) {
  std::vector<std::pair<const Shard*, std::vector<int>>> groups;
  for (const Shard& shard : shards) {
    const Placement& placement = shard.placement;
    if (placement.slice != shards[0].placement.slice || placement.flat != shards[0].placement.flat) return {};
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return std::memcmp(group.first->stored->data, shard.stored->data, shard.stored->bytes) == 0;
    });
    if (same == groups.end())
      groups.push_back({&shard, {shard.rank}});
    else
      same->second.push_back(shard.rank);
  }
  std::vector<std::vector<int>> ranks;
  for (const auto& group : groups) ranks.push_back(group.second);
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return ranks;
}

std::string both_values(const GlobalTensor& tensor, const Difference& difference, const std::vector<Shard>& shards) {
  std::string text;
  for (const int rank : {difference.other, difference.rank})
    for (const Shard& shard : shards) {
      if (shard.rank != rank) continue;
      for (const Piece& run : runs_of(shard))
        if (run.begin <= difference.element && difference.element < run.end)
          text += (text.empty() ? "" : ", ") +
                  dump::value_text(tensor.dtype, run.data + static_cast<size_t>(difference.element - run.begin) *
                                                                dump::size_of(tensor.dtype)) +
                  " on rank " + std::to_string(rank);
    }
  return text;
}

void add_copies(Assembled& out, const std::vector<Shard>& shards) {
  std::vector<Difference> differences;  // one a rank that differs
  int64_t count = 0;
  const size_t bytes = dump::size_of(out.tensor.dtype);
  for (const Shard& shard : shards) {
    if (shard.placement.kind != Placement::Kind::replica) continue;
    Difference odd{shard.rank, -1, -1};
    lay(out.tensor.pieces, runs_of(shard), bytes, [&](const Piece& first, const Piece& copy) {
      const int64_t element = odd.element < 0 || copy.begin < odd.element ? first_difference(first, copy, bytes) : -1;
      if (element >= 0) odd = {shard.rank, first.rank, element};
    });
    if (odd.element < 0) continue;
    count++;
    differences.push_back(odd);
  }
  if (differences.empty()) return;
  const Difference& first = *std::min_element(differences.begin(), differences.end(),
                                              [](const auto& a, const auto& b) { return a.element < b.element; });
  Fault fault{Fault::Kind::replicas_differ, {}, first.element, count, "its copies differ: "};
  const std::vector<std::vector<int>> groups = groups_of(shards);
  if (groups.size() > 1 && groups[0].size() > groups[1].size()) {
    for (size_t i = 1; i < groups.size(); i++)
      fault.ranks.insert(fault.ranks.end(), groups[i].begin(), groups[i].end());
    fault.sentence += ranks_text(fault.ranks) + (fault.ranks.size() == 1 ? " is" : " are") + " odd, " +
                      ranks_text(groups[0]) + " agree";
  } else if (groups.size() > 1) {
    for (size_t i = 0; i < groups.size() && i < 4; i++) fault.sentence += (i ? " | " : "") + ranks_text(groups[i]);
    if (groups.size() > 4) fault.sentence += " | ...";
    for (const auto& group : groups) fault.ranks.insert(fault.ranks.end(), group.begin(), group.end());
  } else {
    fault.ranks = {first.other, first.rank};
    fault.sentence += "rank " + std::to_string(first.rank) + " from rank " + std::to_string(first.other);
  }
  std::sort(fault.ranks.begin(), fault.ranks.end());
  fault.sentence +=
      "; first at " + element_text(out.tensor, first.element) + ": " + both_values(out.tensor, first, shards);
  out.faults.push_back(std::move(fault));
}

void add_summands(Assembled& out, const std::vector<Shard>& shards, bool sum) {
  std::vector<int> ranks;
  for (const Shard& shard : shards) {
    out.tensor.summands.push_back(runs_of(shard));
    lay(out.tensor.pieces, out.tensor.summands.back(), dump::size_of(out.tensor.dtype),
        [](const Piece&, const Piece&) {});
    ranks.push_back(shard.rank);
  }
  if (!sum)
    out.faults.push_back({Fault::Kind::not_summed, ranks, -1, 0,
                          ranks_text(ranks) + (ranks.size() == 1 ? " has a summand" : " have summands") +
                              " of it, not its value; --sum-partials adds them up"});
}

void find_gaps(Assembled& out) {
  Fault gap{Fault::Kind::gap, {}, -1, 0, ""};
  int64_t at = 0;
  const auto missing = [&](int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (gap.element < 0) gap.element = begin;
    gap.count += end - begin;
  };
  for (const Piece& piece : out.tensor.pieces) {
    missing(at, piece.begin);
    at = piece.end;
  }
  missing(at, out.tensor.elements);
  if (gap.element < 0) return;
  std::vector<int> holders;
  for (const Piece& piece : out.tensor.pieces) holders.push_back(piece.rank);
  gap.sentence = std::to_string(gap.count) + " of its " + std::to_string(out.tensor.elements) +
                 " elements are on no rank, first " + element_text(out.tensor, gap.element) + "; " +
                 (holders.empty() ? "none is on any" : "the others are on " + ranks_text(std::move(holders)));
  out.faults.push_back(std::move(gap));
}

}  // namespace

const char* name_of(Fault::Kind kind) {
  static const char* const names[] = {"gap", "overlap", "replicas-differ", "ranks-disagree", "not-summed"};
  return names[static_cast<size_t>(kind)];
}

bool Assembled::usable() const {
  return std::none_of(faults.begin(), faults.end(), [](const Fault& fault) {
    return fault.kind == Fault::Kind::gap || fault.kind == Fault::Kind::shape || fault.kind == Fault::Kind::not_summed;
  });
}

Assembled assemble(const std::string& name, const std::vector<Shard>& shards, const AssemblyOptions& options) {
  Assembled out;
  const Shard& first = shards.front();
  out.tensor.name = name;
  out.tensor.dtype = first.stored->dtype;
  out.tensor.shape = first.placement.global;
  out.tensor.elements = dump::elements_of(out.tensor.shape);
  if (!agree(shards, out.tensor, out.faults)) return out;
  if (first.placement.kind == Placement::Kind::partial) {
    add_summands(out, shards, options.sum_partials);
  } else {
    own(out, shards);
    add_copies(out, shards);
  }
  find_gaps(out);
  return out;
}

std::string ranks_text(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) last++;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += (last > i + 1 ? "-" : ",") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

}  // namespace lockstep::verify
