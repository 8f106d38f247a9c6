// SPDX-License-Identifier: MIT
//
// See control.h.

#include "reference/nccl/control.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'C', 'O', 'M', 'M', '0', '1'};

// What the 128 bytes of a unique id hold.
struct Id {
  char magic[8];
  uint64_t nonce[2];
  char boot_id[36];
  int32_t pid;
  uint64_t process_start;
  uint64_t pid_namespace;
  int32_t fd;
  int32_t reserved;
};
static_assert(sizeof(Id) <= NCCL_UNIQUE_ID_BYTES);

std::string read_text(const char* path) {
  std::string text;
  if (std::FILE* file = std::fopen(path, "re")) {
    char buffer[1024];
    text.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
    std::fclose(file);
  }
  return text;
}

uint64_t start_ticks(int pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const std::string stat = read_text(path);
  size_t at = stat.rfind(')');  // the name before it may hold blanks
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(stat.c_str() + at, nullptr, 10);
}

uint64_t pid_namespace() {
  struct stat what {};
  return stat("/proc/self/ns/pid", &what) == 0 ? what.st_ino : 0;
}

std::byte* map_part(int fd, size_t offset, size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
}

// Segments mapped by this process, so that ranks that are threads share a mapping; those made here are kept until all
// ranks have joined, for the maker need not be a rank.
using Nonce = std::pair<uint64_t, uint64_t>;
struct Segments {
  std::mutex mutex;
  std::map<Nonce, std::weak_ptr<Control>> known;
  std::map<Nonce, std::shared_ptr<Control>> made;
};
Segments& segments() {
  static Segments* const the_one = [] {  // never destroyed: threads may run while the process exits
    auto* const made = new Segments;
    // A child forked while another thread is in here would wait for that thread, which it does not have.
    pthread_atfork([] { segments().mutex.lock(); }, [] { segments().mutex.unlock(); },
                   [] { segments().mutex.unlock(); });
    return made;
  }();
  return *the_one;
}

bool complete(Header& header) {
  const uint32_t nranks = header.nranks.load();
  return nranks != 0 && header.joined.load() >= nranks;
}

void forget(const Nonce& nonce) {
  std::shared_ptr<Control> last;  // goes after the lock
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  const auto found = all.made.find(nonce);
  if (found == all.made.end()) return;
  last = std::move(found->second);
  all.made.erase(found);
}

void sweep(Segments& all) {
  std::erase_if(all.made, [](const auto& entry) { return complete(entry.second->header()); });
  std::erase_if(all.known, [](const auto& entry) { return entry.second.expired(); });
}

ncclResult_t open_segment(const Id& id, std::shared_ptr<Control>& control) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  struct stat what {};
  if (fd < 0 || fstat(fd, &what) != 0 || !S_ISREG(what.st_mode) || what.st_size < static_cast<off_t>(kHeaderBytes)) {
    if (fd >= 0) close(fd);
    warn(
        "cannot open the communicator's memory of process %d (%s): the process that made the unique id must live, and "
        "belong to the same user, until all ranks have joined",
        id.pid, path);
    return ncclSystemError;
  }
  std::byte* header = map_part(fd, 0, kHeaderBytes);
  if (header == nullptr) {
    close(fd);
    warn("cannot map the communicator's memory: %s", std::strerror(errno));
    return ncclSystemError;
  }
  auto opened = std::make_shared<Control>(fd, header);
  if (std::memcmp(opened->header().magic, kMagic, sizeof kMagic) != 0 ||
      std::memcmp(opened->header().nonce, id.nonce, sizeof id.nonce) != 0) {
    warn("the process that made the unique id (%d) has ended, or all its ranks have joined already", id.pid);
    return ncclSystemError;
  }
  control = std::move(opened);
  return ncclSuccess;
}

}  // namespace

Cores Cores::of_this_thread() {
  static_assert(sizeof(cpu_set_t) == sizeof(Cores));
  cpu_set_t set;
  Cores cores{};
  if (sched_getaffinity(0, sizeof set, &set) == 0) std::memcpy(&cores, &set, sizeof cores);
  return cores;
}
void Cores::add(const Cores& others) {
  for (size_t i = 0; i < std::size(bits); ++i) bits[i] |= others.bits[i];
}
int Cores::count() const {
  int found = 0;
  for (const uint64_t word : bits) found += std::popcount(word);
  return std::max(found, 1);
}

uint64_t process_start_ticks() { return start_ticks(getpid()); }

Control::Control(int fd, std::byte* header) : fd_(fd), header_(header) {}

Control::~Control() {
  if (ranks_ != nullptr) munmap(ranks_, ranks_bytes_);
  munmap(header_, kHeaderBytes);
  if (fd_ >= 0) close(fd_);
}

bool Control::map_ranks(int nranks) {
  const std::lock_guard lock(mutex_);
  if (ranks_ != nullptr) return true;
  const auto n = static_cast<size_t>(nranks);
  edges_at_ = sizeof(Member) * n;
  ranks_bytes_ = edges_at_ + sizeof(Edge) * n * n;
  struct stat what {};
  const auto size = static_cast<off_t>(kHeaderBytes + ranks_bytes_);
  // Growing to the same size is harmless, so all ranks may do it at once.
  if (fstat(fd_, &what) != 0 || (what.st_size < size && ftruncate(fd_, size) != 0)) return false;
  ranks_ = map_part(fd_, kHeaderBytes, ranks_bytes_);
  nranks_ = n;
  return ranks_ != nullptr;
}

void Control::forget_made() { forget({header().nonce[0], header().nonce[1]}); }

void Control::close_when_complete() {
  if (!complete(header())) return;
  Segments& all = segments();
  const std::lock_guard all_lock(all.mutex);
  all.made.erase({header().nonce[0], header().nonce[1]});
  const std::lock_guard lock(mutex_);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

static Id own_id() {
  Id id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  const std::string boot = read_text("/proc/sys/kernel/random/boot_id");
  std::memcpy(id.boot_id, boot.data(), std::min(boot.size(), sizeof id.boot_id));
  id.pid = getpid();
  id.process_start = process_start_ticks();
  id.pid_namespace = pid_namespace();
  return id;
}

ncclResult_t make_unique_id(ncclUniqueId* out, const char* name) {
  Id id = own_id();
  id.fd = memfd_create(name, MFD_CLOEXEC);
  std::byte* header = nullptr;
  if (id.fd >= 0 && ftruncate(id.fd, kHeaderBytes) == 0 && getrandom(id.nonce, sizeof id.nonce, 0) == sizeof id.nonce)
    header = map_part(id.fd, 0, kHeaderBytes);
  if (header == nullptr) {
    warn("cannot make the communicator's memory: %s", std::strerror(errno));
    if (id.fd >= 0) close(id.fd);
    return ncclSystemError;
  }
  auto control = std::make_shared<Control>(id.fd, header);
  std::memcpy(control->header().nonce, id.nonce, sizeof id.nonce);
  std::memcpy(control->header().magic, kMagic, sizeof kMagic);

  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  sweep(all);
  all.known[{id.nonce[0], id.nonce[1]}] = control;
  all.made[{id.nonce[0], id.nonce[1]}] = std::move(control);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &id, sizeof id);
  return ncclSuccess;
}

ncclResult_t open_incomplete_segment(int pid, int fd, std::shared_ptr<Control>& control) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  const int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  std::byte* const header = file < 0 ? nullptr : map_part(file, 0, kHeaderBytes);
  if (header == nullptr) {
    if (file >= 0) close(file);
    return ncclInProgress;
  }
  Control seen(file, header);
  if (std::memcmp(seen.header().magic, kMagic, sizeof kMagic) != 0 || complete(seen.header())) return ncclInProgress;
  Id id = own_id();
  id.pid = pid;
  id.process_start = start_ticks(pid);
  id.fd = fd;
  std::memcpy(id.nonce, seen.header().nonce, sizeof id.nonce);
  ncclUniqueId whole{};
  std::memcpy(&whole, &id, sizeof id);
  return open_unique_id(whole, control);
}

void forget_unique_id(const ncclUniqueId& in) {
  Id id{};
  std::memcpy(&id, &in, sizeof id);
  forget({id.nonce[0], id.nonce[1]});
}

ncclResult_t open_unique_id(const ncclUniqueId& in, std::shared_ptr<Control>& control) {
  Id id{};
  std::memcpy(&id, &in, sizeof id);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) {
    warn("the unique id was not made by this library (ncclGetUniqueId of the host runtime)");
    return ncclInvalidArgument;
  }
  const std::string boot = read_text("/proc/sys/kernel/random/boot_id");
  if (std::memcmp(boot.data(), id.boot_id, std::min(boot.size(), sizeof id.boot_id)) != 0 ||
      id.pid_namespace != pid_namespace()) {
    warn(
        "the unique id was made on another machine or in another container: the host runtime connects ranks on one "
        "machine, in one pid namespace");
    return ncclSystemError;
  }
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  const Nonce nonce{id.nonce[0], id.nonce[1]};
  if (const auto found = all.known.find(nonce); found != all.known.end()) control = found->second.lock();
  if (control) return ncclSuccess;
  if (start_ticks(id.pid) != id.process_start) {
    warn("the process that made the unique id (%d) has ended", id.pid);
    return ncclSystemError;
  }
  const ncclResult_t result = open_segment(id, control);
  if (result == ncclSuccess) all.known[nonce] = control;
  return result;
}

}  // namespace lockstep::nccl
