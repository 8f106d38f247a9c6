// SPDX-License-Identifier: MIT
//
// A *.hang file, line by line: settings, communicators, programs, expectation. Settings come before the programs, so
// that every statement can be checked against the ranks and communicators there are when it is read.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "tools/scenario/parse_internal.h"

namespace lockstep::scenario {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

class FileParser {
 public:
  FileParser(const std::string& path, const std::string& text) {
    scenario_.path = path;
    read_lines(text);
  }

  Result<Scenario> parse() {
    while (at_ < lines_.size() && error_.empty()) parse_line();
    if (error_.empty()) finish();
    if (!error_.empty()) return Error{error_};
    return std::move(scenario_);
  }

 private:
  void read_lines(const std::string& text) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines_.push_back(trim(strip_comment(line)));
  }

  std::string where(size_t line) const { return scenario_.path + ":" + std::to_string(line + 1); }
  void fail(const std::string& sentence) {
    if (error_.empty()) error_ = where(line_) + ": " + sentence;
  }

  void parse_line() {
    line_ = at_++;
    const std::string& line = lines_[line_];
    if (line.empty()) return;
    size_t colon = line.find(':');
    if (colon == std::string::npos)
      return fail("expected \"name: value\", such as \"ranks: 3\" or \"rank 1: sync\", found \"" + line + "\"");
    std::string key = trim(line.substr(0, colon));
    std::string value = trim(line.substr(colon + 1));
    if (key.rfind("env rank ", 0) == 0) return parse_rank_env(trim(key.substr(9)), value);
    bool program = key == "each" || key.rfind("rank ", 0) == 0;
    if (key != "title" && key != "source" && key != "trap" && key != "ranks" && scenario_.ranks == 0)
      return fail("expected \"ranks: N\" before \"" + key + "\"");
    if (program) return parse_program(key, value);
    if (key.rfind("comm ", 0) == 0) return parse_comm(trim(key.substr(5)), value);
    parse_setting(key, value);
  }

  void parse_setting(const std::string& key, const std::string& value) {
    if (!seen_.insert(key).second && key != "env" && key != "fault") return fail("\"" + key + "\" is given twice");
    if (key == "title")
      scenario_.title = value;
    else if (key == "source")
      scenario_.source = value;
    else if (key == "trap")
      scenario_.trap = value;
    else if (key == "ranks")
      parse_rank_count(value);
    else if (key == "threads")
      scenario_.threads = yes_or_no(key, value);
    else if (key == "kill-on-hang")
      scenario_.kill_on_hang = yes_or_no(key, value);
    else if (key == "hang-seconds")
      scenario_.hang_seconds = seconds(key, value);
    else if (key == "deadline")
      scenario_.deadline = seconds(key, value);
    else if (key == "widen")
      parse_widen(value);
    else if (key == "untraced")
      parse_untraced(value);
    else if (key == "env")
      parse_env(value);
    else if (key == "fault")
      parse_fault(value);
    else if (key == "expect")
      parse_expect(value);
    else
      fail("\"" + key + "\" is no setting; known are " + joined(setting_words()) + ", comm NAME, each, rank LIST");
  }

  void parse_rank_count(const std::string& value) {
    int64_t n = 0;
    if (!parse_number(value, n) || n < 1 || n > kMaxRanks)
      return fail("expected a number of ranks from 1 to " + std::to_string(kMaxRanks) + ", found \"" + value + "\"");
    scenario_.ranks = static_cast<int>(n);
    scenario_.programs.resize(static_cast<size_t>(n));
    Communicator world;
    world.name = kWorld;
    world.groups.emplace_back();
    for (int r = 0; r < scenario_.ranks; r++) world.groups[0].push_back(r);
    scenario_.communicators.push_back(std::move(world));
  }

  bool yes_or_no(const std::string& key, const std::string& value) {
    if (value != "yes" && value != "no") fail("expected yes or no after \"" + key + ":\", found \"" + value + "\"");
    return value == "yes";
  }

  double seconds(const std::string& key, const std::string& value) {
    double s = 0;
    if (!parse_seconds(value, s) || s <= 0)
      fail("expected a number of seconds above 0 after \"" + key + ":\", found \"" + value + "\"");
    return s;
  }

  void parse_untraced(const std::string& value) {
    scenario_.untraced = parse_ranks(value, scenario_.ranks);
    if (scenario_.untraced.empty())
      fail("expected ranks such as 1 or 0,2 below " + std::to_string(scenario_.ranks) + ", found \"" + value + "\"");
  }

  void parse_widen(const std::string& value) {
    widen_line_ = line_;
    const std::vector<int> ranks = parse_ranks(value, scenario_.ranks);
    if (ranks.size() != 1)
      return fail("expected a rank below " + std::to_string(scenario_.ranks) + ", found \"" + value + "\"");
    scenario_.widen = ranks.front();
  }

  // Ranks that are added are in world and nowhere else, and nobody sends them anything.
  void check_widen(const std::vector<Statement>& body) {
    for (const Statement& s : body) {
      const bool message = s.fn == abi::Fn::Send || s.fn == abi::Fn::Recv;
      if ((names_communicator(s.verb) && s.name != kWorld) || message) {
        line_ = widen_line_;
        return fail("further ranks cannot do what rank " + std::to_string(scenario_.widen) + " does in line " +
                    std::to_string(s.line) + ": expected collectives on world alone");
      }
      check_widen(s.body);
    }
  }

  void parse_env(const std::string& value) {
    size_t equal = value.find('=');
    if (equal == std::string::npos || equal == 0) return fail("expected \"env: NAME=VALUE\", found \"" + value + "\"");
    scenario_.environment.emplace_back(value.substr(0, equal), value.substr(equal + 1));
  }

  void parse_rank_env(const std::string& list, const std::string& value) {
    const std::vector<int> ranks = parse_ranks(list, scenario_.ranks);
    if (ranks.empty())
      return fail("expected ranks such as 1 or 0,2 below " + std::to_string(scenario_.ranks) + ", found \"" + list +
                  "\"");
    const size_t equal = value.find('=');
    if (equal == std::string::npos || equal == 0)
      return fail("expected \"env rank LIST: NAME=VALUE\", found \"" + value + "\"");
    for (const int rank : ranks)
      scenario_.rank_environment[rank].emplace_back(value.substr(0, equal), value.substr(equal + 1));
  }

  // fault: ACTION rank R call N [KEY=VALUE]...
  void parse_fault(const std::string& value) {
    std::istringstream in(value);
    std::string rank_word, rank, call_word, call;
    Fault fault;
    in >> fault.action >> rank_word >> rank >> call_word >> call;
    const std::vector<int> ranks = parse_ranks(rank, scenario_.ranks);
    if (rank_word != "rank" || call_word != "call" || ranks.size() != 1 || !parse_number(call, fault.call) ||
        fault.call < 1)
      return fail("expected \"fault: ACTION rank R call N KEY=VALUE...\", such as \"corrupt rank 1 call 3 element=5\"" +
                  (", found \"" + value + "\""));
    fault.rank = ranks.front();
    for (std::string part; in >> part;) {
      if (part.find('=') == std::string::npos) return fail("expected KEY=VALUE in a fault, found \"" + part + "\"");
      fault.rest.push_back(part);
    }
    scenario_.faults.push_back(std::move(fault));
  }

  void parse_expect(const std::string& value) {
    Result<Expectation> e = parse_expectation(where(line_), value, scenario_.ranks);
    if (!e) return take_error(e.error());
    scenario_.expect = std::move(*e);
    scenario_.expect.line = static_cast<int>(line_) + 1;
  }

  // comm NAME: [later] [split PARENT] RANKS [| RANKS]...
  void parse_comm(const std::string& name, const std::string& value) {
    if (programs_seen_) return fail("communicators are declared before the first program");
    bool world = name == kWorld;
    if (!seen_.insert("comm " + name).second) return fail("communicator \"" + name + "\" is declared twice");
    if (name.empty() || name.find(' ') != std::string::npos)
      return fail("expected one word as the name of a communicator, found \"" + name + "\"");
    Communicator comm;
    comm.name = name;
    comm.line = static_cast<int>(line_) + 1;
    std::string groups = parse_comm_options(comm, value);
    if (!error_.empty()) return;
    if (world) {
      if (!groups.empty() || !comm.split_from.empty())
        return fail("world always has all ranks; only \"comm world: later\" may be said of it");
      scenario_.communicators[0].later = comm.later;
      return;
    }
    parse_groups(comm, groups);
    if (error_.empty()) scenario_.communicators.push_back(std::move(comm));
  }

  // Takes the options off the front and returns what is left, the lists of ranks.
  std::string parse_comm_options(Communicator& comm, const std::string& value) {
    std::istringstream in(value);
    std::string word, groups;
    while (in >> word) {
      if (word == "later") {
        comm.later = true;
      } else if (word == "split") {
        in >> comm.split_from;
        const Communicator* parent = scenario_.find(comm.split_from);
        if (!parent)
          fail("expected a communicator declared above after \"split\", found \"" + comm.split_from + "\"");
        else if (parent->later && !comm.later)
          fail("\"" + comm.split_from + "\" is made later, so its split must say \"later\" too");
      } else {
        groups += word + " ";
      }
    }
    return trim(groups);
  }

  void parse_groups(Communicator& comm, const std::string& text) {
    std::set<int> used;
    for (const std::string& part : split(text, "|")) {
      std::vector<int>& group = comm.groups.emplace_back();
      std::istringstream in(part);
      for (std::string word; in >> word;) {
        std::vector<int> ranks = parse_ranks(word, scenario_.ranks);
        if (ranks.empty())
          return fail("expected ranks below " + std::to_string(scenario_.ranks) + ", found \"" + word + "\"");
        group.insert(group.end(), ranks.begin(), ranks.end());
      }
      if (group.empty()) return fail("expected the ranks of communicator \"" + comm.name + "\"");
      for (int r : group)
        if (!used.insert(r).second)
          return fail("rank " + std::to_string(r) + " is in communicator \"" + comm.name + "\" twice");
    }
    check_split_members(comm);
  }

  void check_split_members(const Communicator& comm) {
    if (comm.split_from.empty()) return;
    const Communicator& parent = *scenario_.find(comm.split_from);
    for (const std::vector<int>& group : comm.groups)
      for (int r : group)
        if (parent.group_of(r) != parent.group_of(group[0]) || !parent.group_of(r))
          return fail("rank " + std::to_string(r) + " is not in the same \"" + parent.name + "\" as rank " +
                      std::to_string(group[0]));
  }

  void parse_program(const std::string& key, const std::string& value) {
    programs_seen_ = true;
    std::vector<int> ranks;
    if (key == "each") {
      for (int r = 0; r < scenario_.ranks; r++) ranks.push_back(r);
    } else {
      ranks = parse_ranks(trim(key.substr(5)), scenario_.ranks);
      if (ranks.empty())
        return fail("expected ranks such as 1 or 0,2 or 0-3 below " + std::to_string(scenario_.ranks) + ", found \"" +
                    trim(key.substr(5)) + "\"");
    }
    Cursor cursor(scenario_.path, program_words(value), static_cast<int>(line_) + 1);
    std::vector<Statement> body = parse_statements(cursor);
    if (cursor.error().empty() && !cursor.done()) cursor.fail(cursor.line(), "this \"}\" closes nothing");
    for (int r : ranks) {
      check_statements(cursor, scenario_, r, body);
      std::vector<Statement>& program = scenario_.programs[static_cast<size_t>(r)];
      program.insert(program.end(), body.begin(), body.end());
    }
    take_error(cursor.error());
  }

  // The words of a program: of its line, and of the lines after it while a brace is open.
  std::vector<Word> program_words(const std::string& value) {
    std::vector<Word> words;
    append_words(value, static_cast<int>(line_) + 1, words);
    while (open_braces(words) > 0 && at_ < lines_.size()) {
      words.push_back({";", static_cast<int>(at_) + 1});
      append_words(lines_[at_], static_cast<int>(at_) + 1, words);
      at_++;
    }
    return words;
  }

  static int open_braces(const std::vector<Word>& words) {
    int open = 0;
    for (const Word& w : words) open += w.text == "{" ? 1 : w.text == "}" ? -1 : 0;
    return open;
  }

  void take_error(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

  void finish() {
    line_ = lines_.empty() ? 0 : lines_.size() - 1;
    if (scenario_.ranks == 0)
      fail("expected \"ranks: N\" before the end");
    else if (scenario_.title.empty())
      fail("expected \"title: ...\" before the end");
    else if (scenario_.expect.status.empty())
      fail("expected \"expect: status ...\" before the end");
    else if (scenario_.widen >= 0)
      check_widen(scenario_.programs[static_cast<size_t>(scenario_.widen)]);
  }

  Scenario scenario_;
  std::vector<std::string> lines_;
  std::set<std::string> seen_;
  size_t at_ = 0, line_ = 0, widen_line_ = 0;
  bool programs_seen_ = false;
  std::string error_;
};

}  // namespace

const std::vector<std::string>& setting_words() {
  static const std::vector<std::string> words = {"title",        "source",   "trap",         "ranks", "threads",
                                                 "hang-seconds", "deadline", "kill-on-hang", "widen", "untraced",
                                                 "env",          "fault",    "expect"};
  return words;
}

Result<Scenario> parse_scenario(const std::string& path, const std::string& text) {
  // What is no text is not quoted in complaints either.
  const auto control = std::find_if(text.begin(), text.end(), [&text](const char& c) {
    if (c == '\r') return (&c)[1] != '\n' && &c != &text.back();  // a line may end as on Windows
    return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t';
  });
  if (control != text.end())
    return Error{path + ": this is no text file (byte " + std::to_string(control - text.begin()) +
                 " is a control character); expected a scenario, as in docs/scenarios.md"};
  return FileParser(path, text).parse();
}

Result<Scenario> load_scenario(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  // A folder opens, but reading it fails.
  if (!in || !(text << in.rdbuf())) {
    int why = errno;
    return Error{path + ": cannot read this scenario file: " + (why ? std::strerror(why) : "it is empty")};
  }
  return parse_scenario(path, text.str());
}

}  // namespace lockstep::scenario
