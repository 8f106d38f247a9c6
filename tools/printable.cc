// SPDX-License-Identifier: MIT

#include "tools/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace lockstep {
namespace {

struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

CodePoint code_point_at(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 && lead < 0xf5 ? 4 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (bytes == 0 || lead >= 0xf5 || text.size() < bytes) return {};
  uint32_t value = lead & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; i++) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    value = value << 6 | (next & 0x3f);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  return overlong || surrogate || value > 0x10ffff ? CodePoint{} : CodePoint{value, bytes};
}

bool obeyed_by_terminals(uint32_t value) {
  return value < 0x20 || (value >= 0x7f && value < 0xa0) || (value >= 0x2028 && value <= 0x202e) ||
         (value >= 0x2066 && value <= 0x2069) || value == 0x200e || value == 0x200f || value == 0xfeff;
}

std::string escaped(uint32_t value) {
  if (value == '\n') return "\\n";
  if (value == '\t') return "\\t";
  if (value == '\r') return "\\r";
  return value < 0x80 ? fmt::format("\\x{:02x}", value) : fmt::format("\\u{:04x}", value);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint at = code_point_at(text);
    if (at.bytes == 0)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    else if (obeyed_by_terminals(at.value))
      out += escaped(at.value);
    else
      out += text.substr(0, at.bytes);
    text.remove_prefix(at.bytes ? at.bytes : 1);
  }
  return out;
}

}  // namespace lockstep
