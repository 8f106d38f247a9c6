// SPDX-License-Identifier: MIT
//
// See engine.h. Waiting and the progress thread are in progress.cc.

#include "reference/cuda/engine.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "reference/cuda/capture.h"
#include "reference/cuda/runtime.h"

namespace lockstep::host {
namespace {

constexpr int kDefaultDevices = 8;
constexpr int kMaxDevices = 1024;

int devices_wanted() {
  const char* text = std::getenv("LOCKSTEP_HOST_DEVICES");
  if (text == nullptr) return kDefaultDevices;
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*text != '\0' && *end == '\0' && count >= 1 && count <= kMaxDevices) return static_cast<int>(count);
  std::fprintf(stderr,
               "lockstep host runtime: LOCKSTEP_HOST_DEVICES is '%s', expected a number from 1 to %d; using %d\n", text,
               kMaxDevices, kDefaultDevices);
  return kDefaultDevices;
}

thread_local int t_device = 0;
thread_local bool t_null_is_per_thread = false;

// The default streams of one thread (cudaStreamPerThread), by device.
struct ThreadStreams {
  std::map<int, std::shared_ptr<Stream>> by_device;
  ~ThreadStreams() {
    for (auto& [device, stream] : by_device) engine().forget_stream(stream);
  }
};
thread_local ThreadStreams t_streams;

cudaStream_t handle_of(Stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }

}  // namespace

Engine& engine() {
  static Engine* const the_one = new Engine;
  return *the_one;
}

Engine::Engine() {
  const int count = devices_wanted();
  for (int d = 0; d < count; ++d) {
    devices_.push_back(std::make_unique<Device>());
    devices_.back()->legacy = add_stream(d, StreamKind::legacy, 0);
  }
  pthread_atfork(nullptr, nullptr, [] { engine().note_forked(); });
}

void Engine::note_forked() {
  if (started_.load()) forked_.store(true);
}
cudaError_t Engine::lasting_error() { return lockstep_host_sticky_error(); }

cudaError_t Engine::ready() {
  return forked_.load(std::memory_order_relaxed) ? cudaErrorInitializationError : cudaSuccess;
}

int Engine::current_device() { return t_device; }
void Engine::set_current_device(int device) { t_device = device; }

bool Engine::null_is_per_thread(bool yes) { return std::exchange(t_null_is_per_thread, yes); }

void Engine::ranks_here(int ranks, int cores) {
  const int per_core = (ranks + cores - 1) / cores;
  int known = ranks_per_core_.load();
  while (per_core > known && !ranks_per_core_.compare_exchange_weak(known, per_core)) {
  }
}

// --- streams
// -------------------------------------------------------------------------------------------------------------

std::shared_ptr<const Engine::StreamList> Engine::streams() const {
  const std::lock_guard lock(mutex_);
  return all_;
}

std::shared_ptr<Stream> Engine::add_stream(int device, StreamKind kind, int priority) {
  auto stream = std::make_shared<Stream>(device, kind, priority);
  if (kind == StreamKind::blocking) {
    Device& owner = *devices_[static_cast<size_t>(device)];
    const std::lock_guard lock(owner.mutex);
    owner.blocking.push_back(stream);
  }
  const std::lock_guard lock(mutex_);
  auto list = std::make_shared<StreamList>(*all_);
  list->push_back(stream);
  all_ = std::move(list);
  return stream;
}

cudaStream_t Engine::create_stream(StreamKind kind, int priority) {
  auto stream = add_stream(t_device, kind, priority);
  const cudaStream_t handle = handle_of(stream.get());
  const std::lock_guard lock(mutex_);
  by_handle_.emplace(handle, std::move(stream));
  return handle;
}

std::shared_ptr<Stream> Engine::per_thread_stream(int device) {
  auto& stream = t_streams.by_device[device];
  if (!stream) stream = add_stream(device, StreamKind::blocking, 0);
  return stream;
}

std::shared_ptr<Stream> Engine::stream(cudaStream_t handle, int device) {
  if (handle == nullptr && t_null_is_per_thread) return per_thread_stream(device);
  if (handle == nullptr || handle == cudaStreamLegacy) return devices_[static_cast<size_t>(device)]->legacy;
  if (handle == cudaStreamPerThread) return per_thread_stream(device);
  const std::lock_guard lock(mutex_);
  const auto found = by_handle_.find(handle);
  return found == by_handle_.end() ? nullptr : found->second;
}

bool Engine::destroy_stream(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(mutex_);
    const auto found = by_handle_.find(handle);
    if (found == by_handle_.end()) return false;
    stream = std::move(found->second);
    by_handle_.erase(found);
  }
  forget_stream(stream);
  return true;
}

void Engine::forget_stream(const std::shared_ptr<Stream>& stream) {
  forget_captured_stream(stream);
  if (stream->pending()) {  // as in CUDA: destroying returns at once, the work is finished
    stream->orphaned.store(true);
    orphans_.fetch_add(1);
    poke();
    return;
  }
  if (stream->kind == StreamKind::blocking) {
    Device& owner = *devices_[static_cast<size_t>(stream->device)];
    const std::lock_guard lock(owner.mutex);
    std::erase(owner.blocking, stream);
  }
  const std::lock_guard lock(mutex_);
  auto list = std::make_shared<StreamList>(*all_);
  std::erase(*list, stream);
  all_ = std::move(list);
}

void Engine::drop_finished_orphans() {
  if (orphans_.load() == 0) return;
  const auto all = streams();
  for (const auto& stream : *all)
    if (!stream->pending() && stream->orphaned.exchange(false)) {
      orphans_.fetch_sub(1);
      forget_stream(stream);
    }
}

// The legacy stream waits for what the blocking streams of its device have so far, and they for what it has.
std::vector<Point> Engine::implicit_waits(Device& device, const Stream& stream) {
  std::vector<Point> waits;
  if (stream.kind == StreamKind::legacy) {
    for (const auto& other : device.blocking)
      if (other->pending()) waits.push_back({other, other->enqueued()});
  } else if (device.legacy->pending()) {
    waits.push_back({device.legacy, device.legacy->enqueued()});
  }
  return waits;
}

Point Engine::submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Op> op, std::vector<Point> after) {
  start_progress();
  Point point{stream, 0};
  if (stream->kind == StreamKind::non_blocking) {
    point.seq = stream->enqueue(std::move(op), std::move(after));
  } else {
    Device& device = *devices_[static_cast<size_t>(stream->device)];
    const std::lock_guard lock(device.mutex);
    const auto implicit = implicit_waits(device, *stream);
    after.insert(after.end(), implicit.begin(), implicit.end());
    point.seq = stream->enqueue(std::move(op), std::move(after));
  }
  progress_bell_.ring();
  return point;
}

bool Engine::anybody_captures() { return host::anybody_captures(); }
cudaError_t Engine::capture(const std::vector<std::shared_ptr<Stream>>& streams, Recipe recipe, bool& captured) {
  return host::capture(streams, {cudaGraphNodeTypeKernel, std::move(recipe)}, captured);
}

bool Engine::quiet(const std::shared_ptr<Stream>& stream) {
  if (stream->pending()) return false;
  if (stream->kind == StreamKind::non_blocking) return true;
  Device& device = *devices_[static_cast<size_t>(stream->device)];
  const std::lock_guard lock(device.mutex);
  return implicit_waits(device, *stream).empty();
}

// --- memory
// --------------------------------------------------------------------------------------------------------------

Heap* Engine::heap() {
  std::call_once(heap_once_, [this] {
    started_.store(true);
    heap_ = Heap::create();
  });
  return heap_.get();
}

void* Engine::allocate(size_t bytes, Memory memory, int device) {
  Heap* const to = heap();
  return to == nullptr ? nullptr : to->allocate(bytes, memory, device);
}
bool Engine::free(void* pointer) {
  Heap* const from = heap();
  return from != nullptr && from->free(pointer);
}
std::optional<uint64_t> Engine::heap_offset(const void* pointer) {
  Heap* const in = heap();
  return in == nullptr ? std::nullopt : in->offset_of(pointer);
}
HeapAddress Engine::heap_address() {
  Heap* const of = heap();
  return of == nullptr ? HeapAddress{} : of->address();
}

std::shared_ptr<PeerHeap> Engine::peer_heap(const HeapAddress& address) {
  const std::lock_guard lock(peers_mutex_);
  auto& known = peers_[address.nonce];
  auto peer = known.lock();
  if (!peer) {
    peer = map_peer_heap(address);
    known = peer;
    std::erase_if(peers_, [](const auto& entry) { return entry.second.expired(); });
  }
  return peer;
}

}  // namespace lockstep::host

lockstep::host::Api* lockstep_host_api() { return &lockstep::host::engine(); }
