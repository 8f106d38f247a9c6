// SPDX-License-Identifier: MIT
//
// See named_id.h.

#include "reference/nccl/named_id.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "interpose/abi/comm_hash.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'N', 'A', 'M', 'E', '0', '1'};
constexpr size_t kMaxName = NCCL_UNIQUE_ID_BYTES - sizeof kMagic - 1;
constexpr int kBacklog = 4096;  // connections are never taken, so all ranks' must fit

std::string name_in(const ncclUniqueId& id) { return id.internal + sizeof kMagic; }

// <host>:<port>, with an IPv6 address in brackets.
bool is_host_and_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.size() > kMaxName) return false;
  const std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos) return false;
  if (std::atoi(port.c_str()) > 65535) return false;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed || host.find_first_of(":[] \t") == std::string::npos;
}

uint64_t hash_of(const ncclUniqueId& id) {
  return abi::comm_hash_of_unique_id(&id) ^ (static_cast<uint64_t>(getuid()) << 32);
}
std::string memory_name(const ncclUniqueId& id) {
  char name[64];
  std::snprintf(name, sizeof name, "lockstep-host-comm-%016llx", static_cast<unsigned long long>(hash_of(id)));
  return name;
}

struct Address {
  sockaddr_un un{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }
};
Address address_of(const ncclUniqueId& id) {
  Address address;
  address.un.sun_family = AF_UNIX;
  const std::string name = memory_name(id);
  std::memcpy(address.un.sun_path + 1, name.data(), name.size());  // after a zero byte: not in the file system
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// The process that listens there; 0: none.
int listener_of(const ncclUniqueId& id) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  const Address address = address_of(id);
  ucred who{};
  socklen_t size = sizeof who;
  const bool there =
      connect(fd, address.get(), address.length) == 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  close(fd);
  return there ? who.pid : 0;
}

}  // namespace

ncclResult_t make_named_id(const char* text, ncclUniqueId* id) {
  if (!is_host_and_port(text)) {
    warn("Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>");
    return ncclInvalidArgument;
  }
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, kMagic, sizeof kMagic);
  std::memcpy(id->internal + sizeof kMagic, text, std::strlen(text));
  return ncclSuccess;
}
bool is_named(const ncclUniqueId& id) { return std::memcmp(id.internal, kMagic, sizeof kMagic) == 0; }

NamedMeeting::NamedMeeting(const ncclUniqueId& id, int rank) : id_(id), rank_(rank) {}
NamedMeeting::~NamedMeeting() {
  if (listener_ >= 0) close(listener_);
}

ncclResult_t NamedMeeting::open(std::shared_ptr<Control>& control) {
  return rank_ == 0 ? make(control) : find(control);
}

// The memory is there before the name is.
ncclResult_t NamedMeeting::make(std::shared_ptr<Control>& control) {
  ncclUniqueId made;
  if (const ncclResult_t result = make_unique_id(&made, memory_name(id_).c_str()); result != ncclSuccess) return result;
  if (const ncclResult_t result = open_unique_id(made, control); result != ncclSuccess) return result;
  control->forget_made();  // this rank has it
  const Address address = address_of(id_);
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener_ >= 0 && bind(listener_, address.get(), address.length) == 0 && listen(listener_, kBacklog) == 0)
    return ncclSuccess;
  warn("Bootstrap: cannot wait for ranks at NCCL_COMM_ID %s: %s", name_in(id_).c_str(), std::strerror(errno));
  return ncclSystemError;
}

ncclResult_t NamedMeeting::find(std::shared_ptr<Control>& control) {
  const int pid = listener_of(id_);
  if (pid == 0) return ncclInProgress;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  const std::string wanted = "/memfd:" + memory_name(id_);
  DIR* const open_files = opendir(folder.c_str());
  if (open_files == nullptr) return ncclInProgress;  // it has just ended
  ncclResult_t result = ncclInProgress;
  while (const dirent* entry = readdir(open_files)) {
    char target[256] = "";
    if (readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1) < 0) continue;
    if (std::string(target).rfind(wanted, 0) != 0) continue;
    result = open_incomplete_segment(pid, std::atoi(entry->d_name), control);
    if (result != ncclInProgress) break;
  }
  closedir(open_files);
  return result;
}

}  // namespace lockstep::nccl
