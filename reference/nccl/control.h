// SPDX-License-Identifier: MIT
//
// The memory that the ranks of one communicator share: who they are, and what each is about to do.
//
//   Header | Member [nranks] | Edge [nranks * nranks]
//
// It is a memfd without a name, made by whoever makes the unique id and opened by the others through /proc/PID/fd/N, so
// nothing is left of it after any kind of death. Ranks that are threads of one process share one mapping.
//
// Every field has one writer, or is an atomic that only counts up; nothing is ever locked. A rank killed at any instant
// leaves the segment in a state that means "not there yet", so its peers wait, as they would with NCCL.
//
//   collectives   A rank writes its Descriptor, then counts itself in at `arrivals`. Phase k of a communicator is over
//                 when arrivals >= nranks * (k + 1); nobody enters phase k + 1 before. A large all-reduce takes three
//                 phases, a small one is over after the first. Two descriptors a rank are enough: a rank can be at most
//                 one operation ahead of another that still reads.
//   p2p           One Edge an ordered pair: the sender posts message n, the receiver copies it and counts `taken` up.
//   life          The same as collectives, for calls that concern the communicator itself (split, windows).

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "interpose/abi/nccl.h"
#include "reference/cuda/heap.h"
#include "reference/cuda/wait.h"

namespace lockstep::nccl {

// Messages up to this size ride in the descriptor itself.
inline constexpr size_t kInlineBytes = 1024;

// Where a rank's buffer is: for peers in the same process its address, for others an offset in the owner's heap.
struct Location {
  uint64_t address = 0;
  uint64_t heap_offset = 0;
};

struct Descriptor {
  uint32_t fn = 0;  // abi::Fn
  int32_t root = 0;
  uint64_t bytes = 0;  // of one rank's block, see collective.h
  uint32_t is_inline = 0;
  uint32_t reserved = 0;
  Location send;
  Location recv;
  uint64_t scale = 0;  // what this rank multiplies its input by; see Input in reduce.h
  alignas(64) std::byte data[kInlineBytes];
};

struct LifeRecord {
  int32_t color = 0;
  int32_t key = 0;
  ncclUniqueId id{};  // written by the first rank of each new communicator
};

// The cores a rank may run on. Launchers like to bind each rank to one, so that a rank alone cannot know how many they
// have together.
struct Cores {
  static constexpr size_t kMax = 1024;
  uint64_t bits[kMax / 64];

  static Cores of_this_thread();
  void add(const Cores& others);
  int count() const;  // at least 1
};

// What the first of the ranks that go on after a shrink tells the others: no meeting of all ranks is possible then.
struct ShrinkRecord {
  std::atomic<uint64_t> posted;   // counts up before and after each is written
  std::atomic<uint64_t> members;  // which ranks it is for
  ncclUniqueId id;
};

struct Member {
  std::atomic<uint32_t> claimed;
  int32_t pid;
  uint64_t process_start;  // clock ticks since boot; tells a pid used again
  int32_t device;
  int32_t reserved;
  host::HeapAddress heap;
  Cores cores;
  host::Bell bell;  // for messages to and from this rank
  Descriptor descriptors[2];
  LifeRecord life[2];
  ShrinkRecord shrink;
};

struct alignas(64) Edge {
  std::atomic<uint64_t> posted;  // writer: sender
  uint64_t bytes;
  Location from;
  alignas(64) std::atomic<uint64_t> taken;  // writer: receiver
};

struct Header {
  char magic[8];
  uint64_t nonce[2];
  std::atomic<uint32_t> nranks;  // 0 until the first rank says how many
  std::atomic<uint32_t> joined;
  host::Bell join_bell;
  alignas(64) std::atomic<uint64_t> arrivals;
  host::Bell bell;  // rings when a phase is over
  alignas(64) std::atomic<uint64_t> life_arrivals;
  host::Bell life_bell;
};

inline constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(Header) <= kHeaderBytes);

class Control {
 public:
  Control(int fd, std::byte* header);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  Header& header() { return *reinterpret_cast<Header*>(header_); }
  // The rest is mapped when the first rank of this process joins; false: no memory.
  bool map_ranks(int nranks);
  Member& member(int rank) { return reinterpret_cast<Member*>(ranks_)[rank]; }
  Edge& edge(int from, int to) {
    return reinterpret_cast<Edge*>(ranks_ + edges_at_)[static_cast<size_t>(from) * nranks_ + static_cast<size_t>(to)];
  }

  // It was made here, and lives as long as whoever has it; see make_unique_id().
  void forget_made();
  // Everybody has it mapped: nobody needs to open it any more.
  void close_when_complete();

 private:
  std::mutex mutex_;
  int fd_;
  std::byte* const header_;
  std::byte* ranks_ = nullptr;
  size_t nranks_ = 0;
  size_t ranks_bytes_ = 0;
  size_t edges_at_ = 0;
};

// ncclSuccess, or what is wrong with an id, told by warn().
// `name` is what the memory is called where the kernel lists it.
ncclResult_t make_unique_id(ncclUniqueId* id, const char* name = "lockstep-host-comm");
ncclResult_t open_unique_id(const ncclUniqueId& id, std::shared_ptr<Control>& control);
// What this process holds for an id it made; not all ranks may ever join, when one of them gives up.
void forget_unique_id(const ncclUniqueId& id);
// The memory behind a descriptor of another process. ncclInProgress: it is gone, or all its ranks have joined already.
ncclResult_t open_incomplete_segment(int pid, int fd, std::shared_ptr<Control>& control);

uint64_t process_start_ticks();

}  // namespace lockstep::nccl
