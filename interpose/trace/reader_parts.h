// SPDX-License-Identifier: MIT
//
// What the parts of the reader share: the open file, from which everything is copied before it is looked at, and the
// clock that turns stamps into times. Private to interpose/trace.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "interpose/trace/format.h"
#include "interpose/trace/reader.h"

namespace lockstep::trace::detail {

// A file opened for reading. Copies by pread rather than mapping it, so a file that shrinks under us is a short read and
// not a SIGBUS.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  bool is_open() const { return fd_ >= 0; }
  const std::string& why_not() const { return why_not_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }

  // Bytes copied; fewer than asked for at the end of the file or on an error.
  size_t read(uint64_t offset, void* to, size_t bytes) const;
  // The first byte at or after offset that is not in a hole; `end` when all the rest up to it is one.
  uint64_t skip_hole(uint64_t offset, uint64_t end) const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
  std::string why_not_;
};

// The part of an area that exists in the file; size 0 when the area is cut away, absent, or makes no sense.
struct Extent {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t stride = 0;
};
Extent extent_of(const FileHeader& header, AreaIndex index, uint32_t least_record, const InputFile& file);

class Clock {
 public:
  Clock() = default;
  Clock(ClockSource source, ClockPair first, ClockPair last);
  Time at(uint64_t stamp) const;  // {} for stamp 0 and when no rate is known
  bool known() const { return known_; }

 private:
  ClockSource source_ = ClockSource::monotonic_ns;
  ClockPair first_{}, last_{};
  bool known_ = false;
};

// A field that must end in a zero byte, and may not.
template <size_t N>
std::string text_of(const char (&field)[N]) {
  size_t n = 0;
  while (n < N && field[n]) n++;
  return std::string(field, n);
}

void read_ring(const InputFile& file, const Extent& ring, const Clock& clock, const Status& status, TraceFile& out);
void read_arena(const InputFile& file, const Extent& arena, uint64_t used, TraceFile& out);

}  // namespace lockstep::trace::detail
