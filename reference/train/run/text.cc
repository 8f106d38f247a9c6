// SPDX-License-Identifier: MIT

#include "reference/train/run/text.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include "reference/train/run/options.h"

namespace train {
namespace {

constexpr off_t kMostBytes = off_t{1} << 31;  // places in a text are 32 bits

[[noreturn]] void cannot_read(const std::string& path, const std::string& why) {
  throw Refusal("cannot read the text " + path + ": " + why);
}

constexpr off_t kMapped = off_t{64} << 20;  // what is shorter is read: nobody can cut it off later

using Bytes = std::shared_ptr<const uint8_t>;

Bytes map(const std::string& path, int fd, size_t size) {
  void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (bytes == MAP_FAILED) cannot_read(path, std::strerror(errno));
  return {static_cast<const uint8_t*>(bytes), [bytes, size](const uint8_t*) { munmap(bytes, size); }};
}

// At least one byte is asked for: some files of the system have no size and cannot be read, and say so then.
Bytes read_whole(const std::string& path, int fd, size_t size) {
  const std::shared_ptr<uint8_t[]> bytes(new uint8_t[std::max<size_t>(size, 1)]);
  for (size_t have = 0; have < std::max<size_t>(size, 1);) {
    const ssize_t got = read(fd, bytes.get() + have, std::max<size_t>(size, 1) - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path, std::strerror(errno));
    if (got == 0 && have < size)
      cannot_read(
          path, "it ends after " + std::to_string(have) + " of " + std::to_string(size) + " bytes: copy it to a file");
    if (got == 0) break;
    if (size == 0) cannot_read(path, "its size is not known: copy it to a file");
    have += static_cast<size_t>(got);
  }
  return {bytes, bytes.get()};
}

// Without waiting for a writer of a pipe, and without an end that never comes.
Bytes bytes_of(const std::string& path, size_t& size) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) cannot_read(path, std::strerror(errno));
  const auto closed = std::shared_ptr<void>(nullptr, [fd](void*) { close(fd); });
  struct stat status {};
  if (fstat(fd, &status) != 0) cannot_read(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) cannot_read(path, "it is not a regular file");
  if (status.st_size >= kMostBytes) cannot_read(path, "it has 2 GiB or more");
  size = static_cast<size_t>(status.st_size);
  return status.st_size >= kMapped ? map(path, fd, size) : read_whole(path, fd, size);
}

}  // namespace

Text::Text(const std::string& path, int64_t length, int64_t vocab, bool packed)
    : path_(path), length_(length), packed_(packed), bytes_(bytes_of(path, size_)) {
  const int64_t windows = (static_cast<int64_t>(size_) - 1) / length;
  if (windows < 2)
    throw Refusal(path + " has " + std::to_string(size_) + " bytes, too few for two samples of " +
                  std::to_string(length) + " tokens and their targets: take a longer text or a smaller --seq");
  held_out_ = std::max<int64_t>(1, windows / 20);
  samples_ = windows - held_out_;
  if (vocab < 256) check_bytes(vocab);
  if (packed) find_documents();
}

void Text::check_bytes(int64_t vocab) const {
  const uint8_t *begin = bytes_.get(), *end = begin + size_;
  uint8_t highest = 0;
  for (const uint8_t* byte = begin; byte < end; ++byte) highest = std::max(highest, *byte);
  if (highest >= vocab)
    throw Refusal(path_ + " has the byte " + std::to_string(highest) + " at " +
                  std::to_string(std::find(begin, end, highest) - begin) + ", and --vocab is " + std::to_string(vocab));
}

void Text::find_documents() {
  const uint8_t* bytes = bytes_.get();
  documents_.push_back(0);
  for (size_t i = 2; i < size_; ++i) {
    const void* line = std::memchr(bytes + i - 2, '\n', size_ - i);  // the first of two, with something behind them
    if (line == nullptr) return;
    i = static_cast<size_t>(static_cast<const uint8_t*>(line) - bytes) + 2;
    if (bytes[i - 1] == '\n' && bytes[i] != '\n') documents_.push_back(static_cast<uint32_t>(i));
  }
}

size_t Text::document_of(size_t byte) const {
  return static_cast<size_t>(std::upper_bound(documents_.begin(), documents_.end(), byte) - documents_.begin()) - 1;
}

int32_t Text::target(int64_t i, int64_t place) const {
  const size_t next = at(i, place) + 1;
  if (packed_ && std::binary_search(documents_.begin(), documents_.end(), next)) return -1;
  return bytes_.get()[next];
}

int32_t Text::position(int64_t i, int64_t place) const {
  if (!packed_) return static_cast<int32_t>(place);
  // A document that began in an earlier sample begins again in this one.
  const size_t begin = documents_[document_of(at(i, place))];
  return static_cast<int32_t>(at(i, place) - std::max(begin, at(i, 0)));
}

int32_t Text::document(int64_t i, int64_t place) const {
  return packed_ ? static_cast<int32_t>(document_of(at(i, place)) - document_of(at(i, 0))) : 0;
}

double Text::unigram_entropy() const {
  std::array<double, 256> count{};
  for (size_t i = 0; i < size_; ++i) count[bytes_.get()[i]] += 1;
  double entropy = 0;
  const auto total = static_cast<double>(size_);
  for (const double n : count)
    if (n > 0) entropy -= n / total * std::log(n / total);
  return entropy;
}

std::string bundled_text() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  const std::filesystem::path program(std::string(self, n > 0 ? static_cast<size_t>(n) : 0));
  return program.parent_path().parent_path() / "share/lockstep/train/lockstep.txt";
}

}  // namespace train
