// SPDX-License-Identifier: MIT
//
// Words of a scenario file, each with its line, and a cursor over them that remembers the first thing that was wrong.
// After an error the cursor stands at the end, so parsing loops stop by themselves and nothing else needs to check.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interpose/trace/result.h"

namespace lockstep::scenario {

struct Word {
  std::string text;  // "{", "}" and ";" stand alone; a line's end inside braces reads as ";"
  int line = 0;
};

// A `#` that begins a word begins a comment, so "pytorch#33148" is a word.
std::string strip_comment(const std::string& line);
std::string trim(const std::string& text);
std::vector<std::string> split(const std::string& text, const std::string& separators);
void append_words(const std::string& text, int line, std::vector<Word>& out);

class Cursor {
 public:
  Cursor(std::string path, std::vector<Word> words, int last_line)
      : path_(std::move(path)), words_(std::move(words)), last_line_(last_line) {}

  bool done() const { return at_ >= words_.size(); }
  int line() const { return done() ? last_line_ : words_[at_].line; }
  const std::string& peek() const { return done() ? kNothing : words_[at_].text; }
  bool take(const std::string& text);
  // The next word, or an error that says what was expected.
  std::string word(const std::string& expected);
  int64_t number(const std::string& expected, int64_t smallest, int64_t largest);
  double seconds();

  void fail(int line, const std::string& sentence);
  const std::string& error() const { return error_; }

 private:
  inline static const std::string kNothing;
  std::string path_;
  std::vector<Word> words_;
  size_t at_ = 0;
  int last_line_ = 0;
  std::string error_;
};

// Reads "3", or "0,2", or "0-3,5"; empty when it is not such a list or a rank is out of range.
std::vector<int> parse_ranks(const std::string& text, int ranks);
bool parse_number(const std::string& text, int64_t& out);
bool parse_seconds(const std::string& text, double& out);

}  // namespace lockstep::scenario
