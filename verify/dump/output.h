// SPDX-License-Identifier: MIT
//
// What both writers of safetensors need: a file that gets its name when it is complete, and the header.

#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "verify/dump/safetensors.h"

namespace lockstep::dump {

// A file under a temporary name (the name with ".part") until it is published; removed when that never happens.
// Failures are thrown as std::runtime_error.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_at(uint64_t offset, const void* data, uint64_t size);
  void move_up(uint64_t from, uint64_t to, uint64_t size);  // bytes of the file to a later place in it
  void publish();

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path path_, part_;
  int fd_ = -1;
};

struct HeaderEntry {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  uint64_t begin, bytes;  // begin is counted from the end of the header
};

// The length and the JSON, padded with spaces so that the tensors begin at a multiple of 64, and not before `room`.
std::string header_bytes(const std::vector<HeaderEntry>& entries, const Metadata& metadata, uint64_t room = 0);

}  // namespace lockstep::dump
