// SPDX-License-Identifier: MIT
//
// Cutting lines into words, and the few values that words can be.

#include "tools/scenario/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tools/scenario/scenario.h"

namespace lockstep::scenario {

std::string strip_comment(const std::string& line) {
  for (size_t i = 0; i < line.size(); i++)
    if (line[i] == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) return line.substr(0, i);
  return line;
}

std::string trim(const std::string& text) {
  const char* blanks = " \t\r";
  size_t first = text.find_first_not_of(blanks);
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string> split(const std::string& text, const std::string& separators) {
  std::vector<std::string> parts;
  size_t from = 0;
  for (;;) {
    size_t to = text.find_first_of(separators, from);
    parts.push_back(trim(text.substr(from, to - from)));
    if (to == std::string::npos) return parts;
    from = to + 1;
  }
}

void append_words(const std::string& text, int line, std::vector<Word>& out) {
  std::string word;
  auto flush = [&] {
    if (!word.empty()) out.push_back({word, line});
    word.clear();
  };
  for (size_t i = 0; i < text.size(); i++) {
    char c = text[i];
    // "{step}" inside a sample's text is one word; a brace that stands alone opens or closes a block.
    size_t close = c == '{' ? text.find('}', i) : std::string::npos;
    std::string inner = close == std::string::npos ? "" : text.substr(i + 1, close - i - 1);
    if (inner == "step" || inner == "rank") {
      word += "{" + inner + "}";
      i = close;
    } else if (c == '{' || c == '}' || c == ';') {
      flush();
      out.push_back({std::string(1, c), line});
    } else if (c == ' ' || c == '\t' || c == '\r') {
      flush();
    } else {
      word += c;
    }
  }
  flush();
}

bool Cursor::take(const std::string& text) {
  if (done() || words_[at_].text != text) return false;
  at_++;
  return true;
}

std::string Cursor::word(const std::string& expected) {
  if (done() || peek() == ";" || peek() == "{" || peek() == "}") {
    fail(line(), "expected " + expected + (done() ? " before the end" : ", found \"" + peek() + "\""));
    return "";
  }
  return words_[at_++].text;
}

int64_t Cursor::number(const std::string& expected, int64_t smallest, int64_t largest) {
  int where = line();
  std::string text = word(expected);
  int64_t value = smallest;
  if (!error_.empty()) return smallest;
  if (!parse_number(text, value) || value < smallest || value > largest) {
    fail(where, "expected " + expected + " from " + std::to_string(smallest) + " to " + std::to_string(largest) +
                    ", found \"" + text + "\"");
    return smallest;
  }
  return value;
}

double Cursor::seconds() {
  int where = line();
  std::string text = word("a number of seconds or \"forever\"");
  double value = 0;
  if (error_.empty() && text == "forever") return kForever;
  if (error_.empty() && !parse_seconds(text, value))
    fail(where, "expected a number of seconds or \"forever\", found \"" + text + "\"");
  return value;
}

void Cursor::fail(int line, const std::string& sentence) {
  if (error_.empty()) error_ = path_ + ":" + std::to_string(line) + ": " + sentence;
  at_ = words_.size();
}

bool parse_number(const std::string& text, int64_t& out) {
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), out);
  return status == std::errc() && end == text.data() + text.size();
}

bool parse_seconds(const std::string& text, double& out) {
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), out);
  return status == std::errc() && end == text.data() + text.size() && std::isfinite(out) && out >= 0 && out <= 1e6;
}

std::vector<int> parse_ranks(const std::string& text, int ranks) {
  std::vector<int> list;
  for (const std::string& part : split(text, ",")) {
    size_t dash = part.find('-');
    int64_t first = 0, last = 0;
    bool ok = parse_number(part.substr(0, dash), first);
    last = first;
    if (ok && dash != std::string::npos) ok = parse_number(part.substr(dash + 1), last);
    if (!ok || first < 0 || last < first || last >= ranks) return {};
    for (int64_t r = first; r <= last; r++) list.push_back(static_cast<int>(r));
  }
  std::vector<int> sorted = list;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return {};
  return list;
}

}  // namespace lockstep::scenario
