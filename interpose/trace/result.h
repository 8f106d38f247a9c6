// SPDX-License-Identifier: MIT
//
// A value, or one sentence that says what went wrong: which file, where in it, what was expected, what to do.

#pragma once

#include <string>
#include <utility>
#include <variant>

namespace lockstep {

struct Error {
  std::string sentence;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const std::string& error() const { return std::get<1>(state_).sentence; }

 private:
  std::variant<T, Error> state_;
};

}  // namespace lockstep
