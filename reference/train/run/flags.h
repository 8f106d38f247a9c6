// SPDX-License-Identifier: MIT
//
// Flags with a value. Numbers, names and paths are read here and not by the parser, which takes "nan" for a number,
// "-1" for a seed and "0" for the first of several names, and tells what it refuses in words of its own. Here a value
// that cannot be is refused in one sentence: the flag, what it was, and what it must be. Help says what a flag means;
// its range is told when it is missed.

#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "reference/train/run/refusal.h"

namespace train {

// Whole numbers.
template <class T>
T read_whole(const char* flag, const std::string& word, T low, T high) {
  T value{};
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high)
    refuse(flag, " is ", word, ", but must be a whole number from ", low, " to ", high);
  return value;
}

template <class T>
CLI::Option* add_whole(CLI::App& app, const char* flag, T& value, const char* text, T low, T high) {
  const auto read = [flag, low, high, &value](const std::string& word) { value = read_whole(flag, word, low, high); };
  return app.add_option_function<std::string>(flag, read, text)->type_name("INT");
}

// Other numbers.
struct Real {
  const char* must;  // be
  bool (*fits)(double);
};
inline constexpr Real kAtLeastZero{"a finite number of at least 0", [](double x) { return x >= 0; }};
inline constexpr Real kAboveZero{"a finite number above 0", [](double x) { return x > 0; }};
inline constexpr Real kBelowOne{"a number of at least 0 and below 1", [](double x) { return x >= 0 && x < 1; }};
inline constexpr Real kFraction{"a number above 0 and at most 1", [](double x) { return x > 0 && x <= 1; }};
inline constexpr Real kMebibytes{"a number above 0 and at most 1e6", [](double x) { return x > 0 && x <= 1e6; }};
inline constexpr Real kMicroseconds{"a number from 0 to 1e9", [](double x) { return x >= 0 && x <= 1e9; }};
inline constexpr Real kFactor{"a number from 0 to 1e6", [](double x) { return x >= 0 && x <= 1e6; }};

double read_real(const char* flag, const std::string& word, const Real& kind);
CLI::Option* add_real(CLI::App& app, const char* flag, double& value, const char* text, const Real& kind);

// One of several names.
template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

template <class T>
std::string names_of(const Choices<T>& choices) {
  std::string names;
  for (size_t i = 0; i < choices.size(); ++i)
    names += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i].first;
  return names;
}

template <class T>
CLI::Option* add_choice(CLI::App& app, const char* flag, T& value, const char* text, const Choices<T>& choices) {
  const auto read = [flag, choices, &value](const std::string& word) {
    for (const auto& choice : choices)
      if (choice.first == word) return static_cast<void>(value = choice.second);
    refuse(flag, " is ", word, ", but must be ", names_of(choices));
  };
  return app.add_option_function<std::string>(flag, read, text);
}
CLI::Option* add_choice(CLI::App& app, const char* flag, std::string& value, const char* text,
                        std::initializer_list<const char*> names);

// A path; `what`: "file" or "folder".
CLI::Option* add_path(CLI::App& app, const char* flag, std::string& value, const char* text, const char* what);

// Refuses flags that are given twice, and "--flag=" without a value: the parser would take the next word for it. Those
// that may be repeated take any number of values.
void check_once(const CLI::App& app, int argc, char** argv);

}  // namespace train
