// SPDX-License-Identifier: MIT
//
// NCCL_ALGO and LOCKSTEP_HOST_ORDER; see algorithm.h.

#include <strings.h>

#include <array>
#include <string>

#include "reference/nccl/algorithm.h"
#include "reference/nccl/comm.h"
#include "reference/nccl/log.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

using abi::Fn;

constexpr std::array kFunctions{Fn::Broadcast, Fn::Reduce, Fn::AllGather, Fn::ReduceScatter, Fn::AllReduce};
constexpr std::array kAlgorithms{"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
constexpr size_t kTree = 0;
constexpr size_t kRing = 1;

struct Allowed {
  bool set = false;
  bool rank_order = false;
  ncclResult_t result = ncclSuccess;
  std::string wrong;  // what to warn of, if the result says so
  std::array<std::array<bool, kAlgorithms.size()>, kFunctions.size()> by_function{};
};

std::vector<std::string> divided(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

bool fail(Allowed& allowed, const char* what, const std::string& token, const std::string& whole) {
  allowed.result = ncclInvalidUsage;
  allowed.wrong = std::string("Unrecognized ") + what + " token \"" + token + "\" when parsing \"" + whole + "\"";
  return false;
}

// One part between semicolons: "func:list", or "list" for all functions.
bool read_part(Allowed& allowed, const std::string& part, const std::string& whole) {
  const size_t colon = part.find(':');
  const std::string function = colon == std::string::npos ? "" : part.substr(0, colon);
  std::string list = colon == std::string::npos ? part : part.substr(colon + 1);
  const bool excludes = !list.empty() && list[0] == '^';
  if (excludes) list.erase(0, 1);
  bool known = function.empty();
  for (size_t f = 0; f < kFunctions.size(); ++f) {
    if (!function.empty() && strcasecmp(function.c_str(), abi::find_function(kFunctions[f])->name) != 0) continue;
    known = true;
    allowed.by_function[f].fill(excludes);
    for (const std::string& name : divided(list, ',')) {
      size_t a = 0;
      while (a < kAlgorithms.size() && strcasecmp(name.c_str(), kAlgorithms[a]) != 0) ++a;
      if (a == kAlgorithms.size()) return fail(allowed, "element", name, whole);
      allowed.by_function[f][a] = !excludes;
    }
  }
  return known || fail(allowed, "prefix", function, whole);
}

Allowed read_settings() {
  Allowed allowed;
  if (const char* order = setting("LOCKSTEP_HOST_ORDER"); order != nullptr && *order != '\0') {
    allowed.rank_order = std::string(order) == "rank";
    if (!allowed.rank_order)
      std::fprintf(stderr, "lockstep host runtime: LOCKSTEP_HOST_ORDER is '%s', expected rank; it is ignored\n", order);
  }
  const char* text = setting("NCCL_ALGO");
  if (text == nullptr || *text == '\0') return allowed;
  allowed.set = true;
  for (auto& each : allowed.by_function) each.fill(true);
  for (const std::string& part : divided(text, ';'))
    if (!read_part(allowed, part, text)) break;
  return allowed;
}

const Allowed& allowed() {
  static const Allowed the_one = read_settings();
  return the_one;
}

const char* nccl_name(ncclDataType_t dtype) {
  constexpr const char* names[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                   "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                   "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  return names[dtype];
}

}  // namespace

ncclResult_t check_algorithm_settings() {
  if (allowed().result != ncclSuccess) warn("%s", allowed().wrong.c_str());
  return allowed().result;
}

ncclResult_t choose_algorithm(const Comm& comm, const Call& call, Algorithm& chosen) {
  chosen = Algorithm::direct;
  if (!allowed().set || comm.nranks == 1) return ncclSuccess;
  for (size_t f = 0; f < kFunctions.size(); ++f) {
    if (kFunctions[f] != call.fn) continue;
    const auto& mine = allowed().by_function[f];
    const bool tree = mine[kTree] && call.fn == Fn::AllReduce;
    if (!mine[kRing] && !tree) {
      const char* const protocol = setting("NCCL_PROTO");
      warn("Error : no algorithm/protocol available for function %s with datatype %s. NCCL_ALGO was set to %s.%s%s%s",
           abi::find_function(call.fn)->name, nccl_name(call.dtype), setting("NCCL_ALGO"),
           protocol != nullptr ? " NCCL_PROTO was set to " : "", protocol != nullptr ? protocol : "",
           protocol != nullptr ? "." : "");
      return ncclInvalidUsage;
    }
    if (!allowed().rank_order) chosen = mine[kRing] ? Algorithm::ring : Algorithm::tree;
  }
  return ncclSuccess;
}

}  // namespace lockstep::nccl
