// SPDX-License-Identifier: MIT
//
// What a rank can do, one statement at a time. Collectives are not listed here: their names, and which of them take an
// operator or a root, come from the one list of NCCL functions.

#include <algorithm>
#include <cctype>

#include "tools/scenario/parse_internal.h"

namespace lockstep::scenario {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 28;
constexpr int kMaxDepth = 16;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

const abi::FunctionInfo* find_operation(const std::string& word) {
  for (const abi::FunctionInfo& f : abi::kFunctions)
    if ((f.kind == abi::FunctionKind::collective || f.kind == abi::FunctionKind::p2p) && lower(f.name) == word)
      return &f;
  return nullptr;
}

int find_dtype(const std::string& word) {
  for (int i = 0; abi::dtype_size(i) != 0; i++)
    if (word == abi::dtype_name(i)) return i;
  return -1;
}

int find_redop(const std::string& word) {
  for (int i = 0; i < 5; i++)
    if (word == abi::redop_name(i)) return i;
  return -1;
}

bool at_end(const Cursor& cursor) {
  return cursor.done() || cursor.peek() == ";" || cursor.peek() == "{" || cursor.peek() == "}";
}

// One word of what follows the count: a type, an operator, a root or a peer.
void parse_argument(Cursor& cursor, const abi::FunctionInfo& f, Statement& s) {
  int line = cursor.line();
  std::string word = cursor.word("a type, an operator, a root or a peer");
  bool p2p = f.kind == abi::FunctionKind::p2p;
  if (int dtype = find_dtype(word); dtype >= 0) {
    s.dtype = dtype;
  } else if (int redop = find_redop(word); redop >= 0 && abi::has_role(f.fn, abi::ArgRole::redop)) {
    s.redop = redop;
  } else if ((word == "root" && abi::has_role(f.fn, abi::ArgRole::root)) || (word == "to" && f.fn == abi::Fn::Send) ||
             (word == "from" && f.fn == abi::Fn::Recv)) {
    s.rank = static_cast<int>(cursor.number("a rank", 0, kMaxRanks - 1));
  } else if (word == "in-place" && !p2p) {
    s.in_place = true;
  } else {
    cursor.fail(line, std::string(f.name) + " takes no \"" + word + "\"; expected a type such as float32" +
                          (abi::has_role(f.fn, abi::ArgRole::redop) ? ", an operator such as sum" : "") +
                          (abi::has_role(f.fn, abi::ArgRole::root) ? ", \"root RANK\"" : "") +
                          (p2p ? (f.fn == abi::Fn::Send ? ", \"to RANK\"" : ", \"from RANK\"") : ", \"in-place\""));
  }
}

void parse_operation(Cursor& cursor, const abi::FunctionInfo& f, Statement& s) {
  s.verb = Verb::communicate;
  s.fn = f.fn;
  s.name = cursor.word("a communicator");
  s.count = static_cast<uint64_t>(cursor.number("a number of elements", 0, kMaxCount));
  while (!at_end(cursor)) parse_argument(cursor, f, s);
  bool needs_rank = f.kind == abi::FunctionKind::p2p || abi::has_role(f.fn, abi::ArgRole::root);
  if (needs_rank && s.rank < 0)
    cursor.fail(s.line, std::string(f.name) + " needs " +
                            (f.fn == abi::Fn::Send   ? "\"to RANK\""
                             : f.fn == abi::Fn::Recv ? "\"from RANK\""
                                                     : "\"root RANK\""));
}

std::vector<Statement> parse_block(Cursor& cursor, int line, const std::string& after) {
  if (!cursor.take("{")) {
    cursor.fail(line, "expected \"{\" after \"" + after + "\"");
    return {};
  }
  std::vector<Statement> body = parse_statements(cursor);
  if (!cursor.take("}")) cursor.fail(line, "the block of \"" + after + "\" is never closed with \"}\"");
  return body;
}

Statement parse_statement(Cursor& cursor);

// `in FUNCTION { ... }`, or without braces for one statement.
void parse_in(Cursor& cursor, Statement& s) {
  s.verb = Verb::in;
  s.name = cursor.word("a function");
  const std::vector<std::string>& names = frame_names();
  if (std::find(names.begin(), names.end(), s.name) == names.end()) {
    std::string known;
    for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
    cursor.fail(s.line, "no function \"" + s.name + "\"; expected one of " + known);
  } else if (cursor.peek() == "{") {
    s.body = parse_block(cursor, s.line, "in " + s.name);
  } else {
    s.body.push_back(parse_statement(cursor));
  }
}

enum class Shape : uint8_t {
  nothing,
  name,
  optional_name,
  number,
  optional_number,
  seconds,
  name_and_number,
  rank,
  block,
  counted_block
};
struct Simple {
  const char* word;
  Verb verb;
  Shape shape;
  const char* expected;
};
constexpr Simple kSimple[] = {
    {"step", Verb::step, Shape::optional_number, "a step"},
    {"phase", Verb::phase, Shape::name, "the name of a phase"},
    {"sample", Verb::sample, Shape::name, "a sample"},
    {"stream", Verb::stream, Shape::name, "the name of a stream"},
    {"sync", Verb::sync, Shape::optional_name, "the name of a stream"},
    {"sync-device", Verb::sync_device, Shape::nothing, ""},
    {"stall", Verb::stall, Shape::seconds, ""},
    {"sleep", Verb::sleep, Shape::seconds, ""},
    {"spin", Verb::spin, Shape::seconds, ""},
    {"tell", Verb::tell, Shape::name, "the name of a flag"},
    {"await", Verb::await, Shape::name_and_number, "the name of a flag"},
    {"judge", Verb::judge, Shape::nothing, ""},
    {"device", Verb::device, Shape::number, "a device"},
    {"try", Verb::attempt, Shape::block, ""},
    {"beside", Verb::beside, Shape::block, ""},
    {"graph", Verb::graph, Shape::counted_block, "how often it is launched"},
    {"await-end", Verb::await_end, Shape::rank, "a rank"},
    {"await-verdict", Verb::await_verdict, Shape::nothing, ""},
    {"init", Verb::init, Shape::name, "a communicator"},
    {"destroy", Verb::destroy, Shape::name, "a communicator"},
    {"finalize", Verb::finalize, Shape::name, "a communicator"},
    {"commabort", Verb::abort_comm, Shape::name, "a communicator"},
    {"exit", Verb::exit, Shape::number, "an exit status"},
    {"_exit", Verb::quick_exit, Shape::number, "an exit status"},
    {"abort", Verb::abort, Shape::nothing, ""},
    {"segv", Verb::segv, Shape::nothing, ""},
    {"kill", Verb::kill, Shape::nothing, ""},
    {"stop", Verb::stop, Shape::nothing, ""},
    {"kill-job", Verb::kill_job, Shape::nothing, ""},
    {"group", Verb::group, Shape::block, ""},
    {"repeat", Verb::repeat, Shape::counted_block, "a number of times"},
};

void parse_simple(Cursor& cursor, const Simple& simple, Statement& s) {
  s.verb = simple.verb;
  bool status = simple.verb == Verb::exit || simple.verb == Verb::quick_exit;
  switch (simple.shape) {
    case Shape::nothing:
      break;
    case Shape::name:
      s.name = cursor.word(simple.expected);
      break;
    case Shape::optional_name:
      if (!at_end(cursor)) s.name = cursor.word(simple.expected);
      break;
    case Shape::number:
      s.number = cursor.number(simple.expected, 0, status ? 255 : INT64_MAX);
      break;
    case Shape::optional_number:
      s.number = at_end(cursor) ? -1 : cursor.number(simple.expected, 0, INT64_MAX / 2);
      break;
    case Shape::seconds:
      s.seconds = cursor.seconds();
      break;
    case Shape::name_and_number:
      s.name = cursor.word(simple.expected);
      s.number = at_end(cursor) ? 1 : cursor.number("how often", 1, 1'000'000);
      break;
    case Shape::rank:
      s.number = cursor.number(simple.expected, 0, kMaxRanks - 1);
      break;
    case Shape::block:
      s.body = parse_block(cursor, s.line, simple.word);
      break;
    case Shape::counted_block:
      s.number = cursor.number(simple.expected, 0, 1'000'000);
      s.body = parse_block(cursor, s.line, std::string(simple.word) + " " + std::to_string(s.number));
      break;
  }
}

Statement parse_statement(Cursor& cursor) {
  Statement s;
  s.line = cursor.line();
  std::string word = cursor.word("a statement");
  if (!cursor.error().empty()) return s;
  const Simple* simple =
      std::find_if(std::begin(kSimple), std::end(kSimple), [&](const Simple& k) { return word == k.word; });
  if (const abi::FunctionInfo* f = find_operation(word)) {
    parse_operation(cursor, *f, s);
  } else if (word == "in") {
    parse_in(cursor, s);
  } else if (simple != std::end(kSimple)) {
    parse_simple(cursor, *simple, s);
  } else {
    cursor.fail(
        s.line,
        "\"" + word +
            "\" is no statement; expected a collective such as allreduce, or one of those in docs/scenarios.md");
  }
  if (!at_end(cursor))
    cursor.fail(cursor.line(), "expected \";\" or the end of the line, found \"" + cursor.peek() + "\"");
  return s;
}

void check_member(Cursor& cursor, const Scenario& scenario, int rank, const Statement& s) {
  const Communicator* comm = scenario.find(s.name);
  if (!comm)
    return cursor.fail(s.line, "no communicator \"" + s.name + "\"; declare it with \"comm " + s.name + ": RANKS\"");
  const std::vector<int>* group = comm->group_of(rank);
  // A rank without colour takes part in a split, so it may say `init`.
  if (s.verb == Verb::init && !comm->split_from.empty()) return;
  if (!group) return cursor.fail(s.line, "rank " + std::to_string(rank) + " is not in communicator \"" + s.name + "\"");
  if (s.verb == Verb::communicate && s.rank >= 0 && std::find(group->begin(), group->end(), s.rank) == group->end())
    cursor.fail(s.line, "rank " + std::to_string(s.rank) + " is not in the communicator \"" + s.name + "\" of rank " +
                            std::to_string(rank));
}

void check_depth(Cursor& cursor, const Scenario& scenario, int rank, const std::vector<Statement>& body, int depth) {
  for (const Statement& s : body) {
    if (depth > kMaxDepth)
      return cursor.fail(s.line, "blocks are nested more than " + std::to_string(kMaxDepth) + " deep");
    if (names_communicator(s.verb)) check_member(cursor, scenario, rank, s);
    if (s.verb == Verb::await_end && (s.number >= scenario.ranks || s.number == rank))
      return cursor.fail(s.line, "rank " + std::to_string(rank) + " cannot wait for the end of rank " +
                                     std::to_string(s.number) + "; expected another rank of the scene");
    check_depth(cursor, scenario, rank, s.body, depth + 1);
  }
}

}  // namespace

bool names_communicator(Verb verb) {
  return verb == Verb::communicate || verb == Verb::init || verb == Verb::destroy || verb == Verb::finalize ||
         verb == Verb::abort_comm;
}

std::vector<Statement> parse_statements(Cursor& cursor) {
  std::vector<Statement> body;
  while (!cursor.done() && cursor.peek() != "}") {
    if (cursor.take(";")) continue;
    body.push_back(parse_statement(cursor));
  }
  return body;
}

std::vector<std::string> statement_words() {
  std::vector<std::string> words = {"in"};
  for (const Simple& k : kSimple) words.push_back(k.word);
  for (const abi::FunctionInfo& f : abi::kFunctions)
    if (find_operation(lower(f.name))) words.push_back(lower(f.name));
  return words;
}

void check_statements(Cursor& cursor, const Scenario& scenario, int rank, const std::vector<Statement>& body) {
  check_depth(cursor, scenario, rank, body, 0);
}

}  // namespace lockstep::scenario
