// SPDX-License-Identifier: MIT

#include "reference/train/run/text.h"

#include <fcntl.h>
#include <limits.h>
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

constexpr size_t kMostBytes = size_t{1} << 31;  // places in a text are 32 bits

[[noreturn]] void cannot_read(const std::string& path, const std::string& why) {
  throw Refusal("cannot read the text " + path + ": " + why);
}

// Without waiting for a writer of a pipe, and without an end that never comes.
std::vector<uint8_t> read_all(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) cannot_read(path, std::strerror(errno));
  const auto closed = std::shared_ptr<void>(nullptr, [fd](void*) { close(fd); });
  struct stat status {};
  if (fstat(fd, &status) != 0) cannot_read(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) cannot_read(path, "it is not a regular file");
  std::vector<uint8_t> bytes, block(size_t{1} << 20);
  while (true) {
    if (bytes.size() >= kMostBytes || status.st_size >= static_cast<off_t>(kMostBytes))
      cannot_read(path, "it has 2 GiB or more");
    const ssize_t got = read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read(path, std::strerror(errno));
    if (got == 0) return bytes;
    bytes.insert(bytes.end(), block.begin(), block.begin() + got);
  }
}

}  // namespace

Text::Text(const std::string& path, int64_t length, int64_t vocab, bool packed)
    : path_(path), length_(length), packed_(packed), bytes_(read_all(path)) {
  const auto size = static_cast<int64_t>(bytes_.size());
  const int64_t windows = (size - 1) / length;
  if (windows < 2)
    throw Refusal(path + " has " + std::to_string(size) + " bytes, too few for two samples of " +
                  std::to_string(length) + " tokens and their targets: take a longer text or a smaller --seq");
  held_out_ = std::max<int64_t>(1, windows / 20);
  samples_ = windows - held_out_;
  const auto highest = std::max_element(bytes_.begin(), bytes_.end());
  if (*highest >= vocab)
    throw Refusal(path + " has the byte " + std::to_string(*highest) + " at " +
                  std::to_string(highest - bytes_.begin()) + ", and --vocab is " + std::to_string(vocab));
  if (!packed) return;
  int32_t document = 0, begin = 0;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (i >= 2 && bytes_[i - 1] == '\n' && bytes_[i - 2] == '\n' && bytes_[i] != '\n') {
      ++document;
      begin = static_cast<int32_t>(i);
    }
    document_.push_back(document);
    begin_.push_back(begin);
  }
}

int32_t Text::target(int64_t i, int64_t place) const {
  const size_t next = at(i, place) + 1;
  if (packed_ && document_[next] != document_[next - 1]) return -1;
  return bytes_[next];
}

int32_t Text::position(int64_t i, int64_t place) const {
  if (!packed_) return static_cast<int32_t>(place);
  // A document that began in an earlier sample begins again in this one.
  return static_cast<int32_t>(at(i, place)) - std::max(begin_[at(i, place)], static_cast<int32_t>(at(i, 0)));
}

int32_t Text::document(int64_t i, int64_t place) const {
  return packed_ ? document_[at(i, place)] - document_[at(i, 0)] : 0;
}

double Text::unigram_entropy() const {
  std::array<double, 256> count{};
  for (const uint8_t byte : bytes_) count[byte] += 1;
  double entropy = 0;
  const auto total = static_cast<double>(bytes_.size());
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
