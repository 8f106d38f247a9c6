// SPDX-License-Identifier: MIT

#include "verify/dump/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

namespace lockstep::dump {

constexpr uint64_t kTensorAlignment = 64;

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)), part_(path_.string() + ".part") {
  fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("cannot be created");
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(part_.c_str());
}

void OutputFile::fail(const char* what) const {
  throw std::runtime_error(part_.string() + ": " + what + ": " + std::system_category().message(errno));
}

void OutputFile::write_at(uint64_t offset, const void* data, uint64_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size) {
    const ssize_t done = pwrite(fd_, bytes, std::min<uint64_t>(size, 1 << 30), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot be written");
    bytes += done, offset += static_cast<uint64_t>(done), size -= static_cast<uint64_t>(done);
  }
}

void OutputFile::move_up(uint64_t from, uint64_t to, uint64_t size) {
  std::vector<char> block(std::min<uint64_t>(size, 4 << 20));
  while (size) {  // from the end, since the places may overlap
    const uint64_t now = std::min<uint64_t>(size, block.size());
    size -= now;
    for (uint64_t got = 0; got < now;) {
      const ssize_t read = pread(fd_, block.data() + got, now - got, static_cast<off_t>(from + size + got));
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) fail("cannot be read back");
      got += static_cast<uint64_t>(read);
    }
    write_at(to + size, block.data(), now);
  }
}

void OutputFile::publish() {
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 || rename(part_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(part_.c_str());
    errno = error;
    fail("cannot be given its name");
  }
}

std::string header_bytes(const std::vector<HeaderEntry>& entries, const Metadata& metadata, uint64_t room) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const HeaderEntry& entry : entries) {
    auto& out = header[entry.name];
    if (!out.is_null() || entry.name == "__metadata__")
      throw std::runtime_error("there can be only one tensor \"" + entry.name + "\" in a file");
    out["dtype"] = name_of(entry.dtype);
    out["shape"] = entry.shape;
    out["data_offsets"] = {entry.begin, entry.begin + entry.bytes};
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::json::type_error&) {
    throw std::runtime_error("the name of a tensor is not UTF-8");
  }
  uint64_t size = std::max<uint64_t>(sizeof(uint64_t) + json.size(), room);
  size = (size + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  const uint64_t length = size - sizeof(uint64_t);
  if (length > kMaxHeaderBytes)
    throw std::runtime_error("a header of " + std::to_string(length) + " bytes; too many tensors");
  json.resize(length, ' ');
  std::string bytes;
  for (unsigned i = 0; i < sizeof length; i++) bytes += static_cast<char>(length >> (8 * i));
  return bytes + json;
}

}  // namespace lockstep::dump
