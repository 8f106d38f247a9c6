// SPDX-License-Identifier: MIT
//
// Digests of results. Where the result of a collective is the same on all ranks by definition, so are its digests; the
// first row in which they differ names the minority, and a tie names nobody.

#include <algorithm>
#include <map>

#include "interpose/abi/functions.h"
#include "tools/judge/rules.h"

namespace lockstep {
namespace {

bool is_same_everywhere(uint16_t fn) {
  using abi::Fn;
  return fn == static_cast<uint16_t>(Fn::AllReduce) || fn == static_cast<uint16_t>(Fn::AllGather) ||
         fn == static_cast<uint16_t>(Fn::Broadcast) || fn == static_cast<uint16_t>(Fn::Bcast);
}

using Vote = std::pair<std::pair<uint64_t, uint64_t>, std::vector<size_t>>;  // value and bytes -> ranks

}  // namespace

std::vector<Finding> find_divergence(const Evidence& evidence) {
  std::vector<Finding> findings;
  for (size_t index = 0; index < evidence.table.comms.size(); index++) {
    std::map<uint64_t, std::map<std::pair<uint64_t, uint64_t>, std::vector<size_t>>> rows;
    for (const Member& member : evidence.table.comms[index].members)
      for (const trace::Digest& digest : member.file->digests)
        if (digest.comm == member.info->serial && digest.output && is_same_everywhere(digest.fn))
          rows[digest.seq][{digest.value, digest.bytes}].push_back(member.rank);
    const auto differs = [](const auto& row) { return row.second.size() > 1; };
    const auto row = std::find_if(rows.begin(), rows.end(), differs);
    if (row == rows.end()) continue;
    std::vector<Vote> votes(row->second.begin(), row->second.end());
    std::stable_sort(votes.begin(), votes.end(),
                     [](const Vote& a, const Vote& b) { return a.second.size() > b.second.size(); });
    Finding finding;
    finding.kind = Kind::result_divergence;
    finding.comm = index;
    finding.seq = row->first;
    const bool tie = votes[0].second.size() == votes[1].second.size();
    for (size_t i = 0; i < votes.size(); i++) {
      std::vector<size_t>& to = i > 0 && !tie ? finding.culprits : finding.victims;
      to.insert(to.end(), votes[i].second.begin(), votes[i].second.end());
    }
    for (const Member& member : evidence.table.comms[index].members)
      if (const trace::Call* call = member.call_at(row->first); call && !finding.expected) {
        finding.op = op_name(*call);
        finding.expected = signature_of(*call);
        finding.since = call->called;
      }
    if (tie) {
      finding.confidence = Confidence::possible;
      finding.doubts.push_back("as many ranks have the one result as the other, so nobody can be blamed");
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace lockstep
