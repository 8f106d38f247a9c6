// SPDX-License-Identifier: MIT
//
// See digests.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/digests.h"

#include <string.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/comms.h"
#include "interpose/shim/driver.h"
#include "interpose/shim/keep_errno.h"
#include "interpose/shim/memory.h"
#include "interpose/shim/recorder.h"
#include "interpose/trace/digest.h"

namespace lockstep::shim {
namespace {

using abi::Fn;

// One buffer on its way through the stream. Taken from a fixed pool: nothing is allocated in a call.
struct Item {
  std::atomic<uint32_t> taken;
  bool output;
  uint32_t epoch;
  DigestJob job;
};
constexpr unsigned kItems = 4096;
constinit Item items[kItems] = {};
std::atomic<uint32_t> hint;

void count_dropped() { recorder.trace.status->digests_dropped.fetch_add(1, std::memory_order_relaxed); }

Item* take_item() {
  const uint32_t start = hint.fetch_add(1, std::memory_order_relaxed);
  for (unsigned i = 0; i < kItems; i++) {
    Item& item = items[(start + i) % kItems];
    if (item.taken.load(std::memory_order_relaxed) == 0 && item.taken.exchange(1, std::memory_order_acquire) == 0)
      return &item;
  }
  return nullptr;
}

// Runs on a thread of CUDA's, between the operations of the stream.
void take_digest(void* with) {
  Item& item = *static_cast<Item*>(with);
  if (recording() && item.epoch == recorder.epoch.load(std::memory_order_relaxed)) {
    const DigestJob& job = item.job;
    const uint64_t address = item.output ? job.output : job.input,
                   bytes = item.output ? job.output_bytes : job.input_bytes;
    ThreadState& thread = known_thread();
    const uint16_t depth = thread.depth;
    thread.depth = kInRecorder;
    trace::DigestFields f;
    f.value = trace::digest_of(reinterpret_cast<const void*>(address), bytes);
    f.stamp = stamp_now(recorder.tsc);
    f.fn = job.fn;
    f.tid = thread.tid;
    f.call = job.call;
    f.bytes = bytes;
    f.seq = job.seq;
    f.comm = job.comm;
    f.output = item.output;
    uint64_t sequence;
    trace::Record* record = trace::reserve(recorder.trace, thread.cursor, sequence);
    trace::write_digest(record, sequence, f);
    thread.depth = depth;
  }
  item.taken.store(0, std::memory_order_release);
}

// The kernel's word: a GPU's memory is in our address space but not ours to read, unless machine or runtime made it so.
bool is_mapped(uint64_t address, uint64_t bytes) {
  uint8_t byte;
  return copy_own_memory(address, &byte, 1) == 1 && copy_own_memory(address + bytes - 1, &byte, 1) == 1;
}

bool host_can_read(uint64_t address, uint64_t bytes) {
  if (!driver->pointer_attribute) return false;
  constexpr int kMemoryType = 2, kIsManaged = 8;  // CU_POINTER_ATTRIBUTE_*
  constexpr unsigned kDevice = 2;
  unsigned type = 0, managed = 0;
  if (driver->pointer_attribute(&type, kMemoryType, address) != kCudaSuccess)
    return true;  // CUDA does not know it: malloc
  if (type != kDevice) return true;
  if (driver->pointer_attribute(&managed, kIsManaged, address) == kCudaSuccess && managed != 0) return true;
  return is_mapped(address, bytes);
}

void put_into_stream(const DigestJob& job, bool output) {
  const uint64_t address = output ? job.output : job.input, bytes = output ? job.output_bytes : job.input_bytes;
  if (address == 0 || bytes == 0) return;
  if (bytes > recorder.config.digest_bytes || !driver->launch_host || !host_can_read(address, bytes))
    return count_dropped();
  Item* item = take_item();
  if (!item) return count_dropped();
  item->output = output;
  item->epoch = recorder.epoch.load(std::memory_order_relaxed);
  item->job = job;
  if (driver->launch_host(reinterpret_cast<void*>(job.stream), take_digest, item) == kCudaSuccess) return;
  item->taken.store(0, std::memory_order_release);
  count_dropped();
}

// "1", or the function's name among those listed.
bool is_wanted(Fn fn) {
  const char* list = recorder.config.digest;
  if (!list[0] || strcmp(list, "0") == 0) return false;
  if (strcmp(list, "1") == 0) return true;
  const char* name = abi::find_function(fn)->name;
  const size_t length = strlen(name);
  for (const char* at = list; (at = strstr(at, name)); at += length)
    if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return true;
  return false;
}

}  // namespace

DigestJob describe_digest(Fn fn, const Comm& comm, uint64_t sendbuff, uint64_t recvbuff, uint64_t count, int32_t dtype,
                          int32_t root, uint64_t stream, uint64_t call, uint64_t seq) {
  const KeepErrno keep;
  const int32_t ranks = comm.slot->nranks, rank = comm.slot->rank;
  if (!driver || ranks <= 0 || rank < 0 || !is_wanted(fn)) return {};
  const uint64_t one = count * abi::dtype_size(dtype), all = one * static_cast<uint64_t>(ranks);
  const bool is_root = rank == root;
  uint64_t in = one, out = one;
  switch (fn) {
    case Fn::AllReduce: break;
    case Fn::Reduce: out = is_root ? one : 0; break;
    case Fn::Broadcast:
    case Fn::Bcast: in = is_root ? one : 0; break;
    case Fn::AllGather: out = all; break;
    case Fn::ReduceScatter: in = all; break;
    case Fn::AlltoAll: in = out = all; break;
    case Fn::Gather: out = is_root ? all : 0; break;
    case Fn::Scatter: in = is_root ? all : 0; break;
    default: return {};
  }
  return {fn == Fn::Bcast ? recvbuff : sendbuff, recvbuff, in, out, call, seq, stream, comm.serial,
          static_cast<uint16_t>(fn)};
}

void digest_input(DigestJob job) {
  const KeepErrno keep;
  put_into_stream(job, false);
}
void digest_output(DigestJob job) {
  const KeepErrno keep;
  put_into_stream(job, true);
}

}  // namespace lockstep::shim
