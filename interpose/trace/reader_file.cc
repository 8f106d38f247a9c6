// SPDX-License-Identifier: MIT
//
// The reader's file and clock.

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "interpose/trace/reader_parts.h"

namespace lockstep::trace::detail {

InputFile::InputFile(const std::string& path) {
  // O_NONBLOCK: a FIFO named like a trace must not stop us.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    why_not_ = strerror(errno);
    return;
  }
  struct stat info;
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    why_not_ = "it is not a regular file";
    close(fd_);
    fd_ = -1;
    return;
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

size_t InputFile::read(uint64_t offset, void* to, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(fd_, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

uint64_t InputFile::skip_hole(uint64_t offset, uint64_t end) const {
  const off_t data = lseek(fd_, static_cast<off_t>(offset), SEEK_DATA);
  if (data >= 0) return std::min(static_cast<uint64_t>(data), end);
  return errno == ENXIO ? end : offset;  // ENXIO: nothing but a hole; anything else: this file system cannot tell
}

Extent extent_of(const FileHeader& header, AreaIndex index, uint32_t least_record, const InputFile& file) {
  const Area& area = header.areas[index];
  if (area.offset < sizeof(FileHeader) || area.offset >= file.size() || area.offset % 8 != 0) return {};
  if (area.record_size < least_record || area.record_size % 8 != 0) return {};
  return {area.offset, std::min(area.size, file.size() - area.offset), area.record_size};
}

Clock::Clock(ClockSource source, ClockPair first, ClockPair last) : source_(source), first_(first), last_(last) {
  // A pair with no mono time was never written; a rate outside 10 MHz .. 100 GHz is not that of a clock.
  if (first.mono_ns <= 0 || last.mono_ns <= 0) return;
  if (source == ClockSource::monotonic_ns) {
    known_ = true;
  } else if (last.stamp > first.stamp && last.mono_ns > first.mono_ns) {
    const double per_ns =
        static_cast<double>(last.stamp - first.stamp) / static_cast<double>(last.mono_ns - first.mono_ns);
    constexpr int64_t kCentury = int64_t{1} << 61;  // keeps the products below within 128 bits
    known_ = per_ns > 0.01 && per_ns < 100 && last.mono_ns < kCentury;
  }
}

Time Clock::at(uint64_t stamp) const {
  if (!known_ || stamp == 0) return {};
  int64_t mono = static_cast<int64_t>(stamp);
  if (source_ == ClockSource::tsc) {
    // Measured from the later pair, where a hang is, so that a small error of the rate shows at the far end.
    const __int128 since = static_cast<__int128>(stamp) - last_.stamp;  // less than 2^64 either way
    const __int128 ns = since * (last_.mono_ns - first_.mono_ns) / (last_.stamp - first_.stamp);
    mono = static_cast<int64_t>(static_cast<__int128>(last_.mono_ns) + ns);
  }
  const uint64_t wall = static_cast<uint64_t>(mono) + static_cast<uint64_t>(last_.wall_ns) -
                        static_cast<uint64_t>(last_.mono_ns);  // unsigned: a hostile file may overflow it
  return {mono, static_cast<int64_t>(wall)};
}

}  // namespace lockstep::trace::detail
