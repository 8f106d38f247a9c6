// SPDX-License-Identifier: MIT
//
// Small files, written and read as they are.

#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::test {

inline void write_text(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A safetensors file by hand: any header, right or wrong, and so many zero bytes behind it.
inline std::string raw_safetensors(const std::string& header, size_t data_bytes) {
  std::string bytes;
  for (unsigned i = 0; i < 8; i++) bytes += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return bytes + header + std::string(data_bytes, '\0');
}

}  // namespace lockstep::test
