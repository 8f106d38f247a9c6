// SPDX-License-Identifier: MIT
//
// The verdict a scenario must get: "status hung; kind missing-call; culprits 1; comm world; seq 3; op AllReduce".

#include <algorithm>

#include "tools/scenario/lexer.h"
#include "tools/scenario/scenario.h"

namespace lockstep::scenario {
namespace {

struct Field {
  const std::string& name;
  const std::string& value;
  const std::string& where;
  int ranks;
};

Error bad(const Field& f, const std::string& expected) {
  return {f.where + ": expected " + expected + " after \"" + f.name + "\", found \"" + f.value + "\""};
}

bool read_ranks(const std::string& text, int ranks, std::vector<int>& out) {
  out = text == "none" ? std::vector<int>{} : parse_ranks(text, ranks);
  return text == "none" || !out.empty();
}

Result<bool> read_rank_sets(const Field& f, std::vector<std::vector<int>>& out) {
  for (const std::string& part : split(f.value, "|")) {
    out.emplace_back();
    if (!read_ranks(part, f.ranks, out.back()))
      return bad(f, "ranks such as 1 or 0,2 below " + std::to_string(f.ranks) + ", or none,");
  }
  return true;
}

Result<bool> read_rank_set(const Field& f, std::optional<std::vector<int>>& out) {
  out.emplace();
  if (!read_ranks(f.value, f.ranks, *out))
    return bad(f, "ranks such as 1 or 0,2 below " + std::to_string(f.ranks) + ", or none,");
  return true;
}

Result<bool> read_number(const Field& f, std::optional<uint64_t>& out) {
  int64_t value = 0;
  if (!parse_number(f.value, value) || value < 0) return bad(f, "a number");
  out = static_cast<uint64_t>(value);
  return true;
}

Result<bool> read_words(const Field& f, std::vector<std::string>& out) {
  out = split(f.value, "|");
  for (const std::string& part : out)
    if (part.empty() || part.find(' ') != std::string::npos)
      return bad(f, "one word, or several with \"|\" between them,");
  return true;
}

Result<bool> read_word(const Field& f, std::string& out) {
  if (f.value.empty() || f.value.find(' ') != std::string::npos) return bad(f, "one word");
  out = f.value;
  return true;
}

Result<bool> read_status(const Field& f, Expectation& e) {
  static const char* known[] = {"healthy", "hung", "mismatch", "failed", "slow", "unknown"};
  Result<bool> ok = read_words(f, e.status);
  if (!ok) return ok;
  for (const std::string& s : e.status)
    if (std::find(std::begin(known), std::end(known), s) == std::end(known))
      return bad(f, "healthy, hung, mismatch, failed, slow or unknown");
  return true;
}

Result<bool> read_op(const Field& f, Expectation& e) {
  if (!abi::find_function(f.value)) return bad(f, "an NCCL function such as AllReduce");
  return read_word(f, e.op);
}

Result<bool> read_frame(const Field& f, Expectation& e) {
  const std::vector<std::string>& names = frame_names();
  if (std::find(names.begin(), names.end(), f.value) == names.end()) return bad(f, "a function that \"in\" knows");
  return read_word(f, e.frame);
}

Result<bool> read_peer(const Field& f, Expectation& e) {
  std::vector<int> ranks = parse_ranks(f.value, f.ranks);
  if (ranks.size() != 1) return bad(f, "a rank below " + std::to_string(f.ranks));
  e.peer = ranks.front();
  return true;
}

Result<bool> read_direction(const Field& f, Expectation& e) {
  if (f.value != "send" && f.value != "receive") return bad(f, "send or receive");
  return read_word(f, e.direction);
}

// also KIND [RANKS]
Result<bool> read_also(const Field& f, Expectation& e) {
  size_t blank = f.value.find(' ');
  e.also = f.value.substr(0, blank);
  if (e.also.empty()) return bad(f, "a kind of finding");
  if (blank == std::string::npos) return true;
  if (!read_ranks(trim(f.value.substr(blank)), f.ranks, e.also_culprits))
    return bad(f, "a kind and ranks such as 1 or 0,2");
  return true;
}

Result<bool> read_field(const Field& f, Expectation& e) {
  if (f.name == "status") return read_status(f, e);
  if (f.name == "kind") return read_words(f, e.kind);
  if (f.name == "culprits") return read_rank_sets(f, e.culprits);
  if (f.name == "victims") return read_rank_set(f, e.victims);
  if (f.name == "missing") return read_rank_set(f, e.missing);
  if (f.name == "comm") return read_word(f, e.comm);
  if (f.name == "op") return read_op(f, e);
  if (f.name == "seq") return read_number(f, e.seq);
  if (f.name == "step") return read_number(f, e.step);
  if (f.name == "edge") return read_number(f, e.edge);
  if (f.name == "peer") return read_peer(f, e);
  if (f.name == "direction") return read_direction(f, e);
  if (f.name == "in") return read_frame(f, e);
  if (f.name == "also") return read_also(f, e);
  return Error{f.where + ": nothing named \"" + f.name +
               "\" can be expected; known are status, kind, culprits, victims, missing, comm, op, seq, step, edge, "
               "peer, direction, in, also"};
}

}  // namespace

Result<Expectation> parse_expectation(const std::string& where, const std::string& text, int ranks) {
  Expectation e;
  for (const std::string& part : split(text, ";")) {
    if (part.empty()) continue;
    size_t blank = part.find(' ');
    std::string name = part.substr(0, blank);
    std::string value = blank == std::string::npos ? "" : trim(part.substr(blank));
    Result<bool> ok = read_field({name, value, where, ranks}, e);
    if (!ok) return Error{ok.error()};
  }
  if (e.status.empty())
    return Error{where + ": expected \"status\" among what is expected, such as \"expect: status hung\""};
  return e;
}

}  // namespace lockstep::scenario
