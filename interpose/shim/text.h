// SPDX-License-Identifier: MIT
//
// Building and parsing short texts without allocating and without the locale. What does not fit is cut.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shim {

class TextBuilder {
 public:
  TextBuilder(char* to, size_t size) : to_(to), size_(size) { to_[0] = '\0'; }
  TextBuilder& operator<<(const char* text) {
    while (text && *text && used_ + 1 < size_) to_[used_++] = *text++;
    to_[used_] = '\0';
    return *this;
  }
  TextBuilder& operator<<(char c) {
    const char text[2] = {c, '\0'};
    return *this << text;
  }
  TextBuilder& operator<<(uint64_t n) {
    char digits[24];
    char* at = digits + sizeof digits - 1;
    *at = '\0';
    do *--at = static_cast<char>('0' + n % 10);
    while (n /= 10);
    return *this << at;
  }
  TextBuilder& operator<<(int64_t n) {
    if (n < 0) *this << '-';
    return *this << (n < 0 ? 0 - static_cast<uint64_t>(n) : static_cast<uint64_t>(n));
  }
  TextBuilder& operator<<(int n) { return *this << static_cast<int64_t>(n); }
  TextBuilder& operator<<(uint32_t n) { return *this << static_cast<uint64_t>(n); }
  TextBuilder& hex(uint64_t n, int digits) {
    for (int i = digits - 1; i >= 0; i--) *this << "0123456789abcdef"[n >> (4 * i) & 15];
    return *this;
  }
  TextBuilder& padded(uint64_t n, int digits) {
    for (uint64_t least = 10; --digits > 0; least *= 10)
      if (n < least) *this << '0';
    return *this << n;
  }
  size_t size() const { return used_; }
  const char* text() const { return to_; }

 private:
  char* to_;
  size_t size_, used_ = 0;
};

template <size_t N>
struct Text : TextBuilder {
  Text() : TextBuilder(space_, N) {}

 private:
  char space_[N];
};

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Decimal digits at `text`, moved past them. False when there are none.
inline bool parse_number(const char*& text, uint64_t& out) {
  if (!is_digit(*text)) return false;
  for (out = 0; is_digit(*text); text++) out = out * 10 + static_cast<uint64_t>(*text - '0');
  return true;
}
inline bool parse_hex(const char*& text, uint64_t& out) {
  const char* start = text;
  for (out = 0;; text++) {
    const char c = *text;
    const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return text != start;
    out = out << 4 | static_cast<uint64_t>(digit);
  }
}

}  // namespace lockstep::shim
