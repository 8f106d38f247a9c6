// SPDX-License-Identifier: MIT
//
// All state of a process: devices, streams, memory, and the progress thread.
//
// It is made at first use and never destroyed: threads of ours, and host functions of the user's, may still run while
// the process exits, and nothing of it outlives the process anyway. A forked child has the memory but not the threads,
// so everything answers cudaErrorInitializationError there instead of hanging.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "reference/cuda/api.h"

namespace lockstep::host {

class Engine final : public Api {
 public:
  Engine();

  cudaError_t ready() override;
  cudaError_t lasting_error() override;
  int device_count() override { return static_cast<int>(devices_.size()); }
  int current_device() override;
  void set_current_device(int device);
  bool null_is_per_thread(bool yes);  // what the null stream is on the calling thread; returns what it was

  std::shared_ptr<Stream> stream(cudaStream_t handle, int device) override;
  cudaStream_t create_stream(StreamKind kind, int priority);
  bool destroy_stream(cudaStream_t handle);
  // A stream without a handle, which waits for nobody by itself.
  std::shared_ptr<Stream> add_lane(int device, int priority) {
    return add_stream(device, StreamKind::non_blocking, priority);
  }
  Point submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Op> op, std::vector<Point> after) override;
  bool anybody_captures() override;
  cudaError_t capture(const std::vector<std::shared_ptr<Stream>>& streams, Recipe recipe, bool& captured) override;
  Point tail(const std::shared_ptr<Stream>& stream) override { return {stream, stream->enqueued()}; }
  void wait(const Point& point) override;
  void wait_device(int device);
  // What the legacy default stream of a device would wait for now.
  bool quiet(const std::shared_ptr<Stream>& stream);

  Heap* heap();  // nullptr: could not be made
  void* allocate(size_t bytes, Memory memory, int device) override;
  bool free(void* pointer) override;
  std::optional<uint64_t> heap_offset(const void* pointer) override;
  HeapAddress heap_address() override;
  std::shared_ptr<PeerHeap> peer_heap(const HeapAddress& address) override;

  Bell& local_bell() override { return local_bell_; }
  void poke() override { progress_bell_.ring(); }
  void ranks_here(int ranks, int cores) override;
  int ranks_per_core() override { return ranks_per_core_.load(std::memory_order_relaxed); }

  void note_forked();
  void forget_stream(const std::shared_ptr<Stream>& stream);  // its work goes on, its handle is dead

 private:
  struct Device {
    std::mutex mutex;  // makes "look at the others, then enqueue" one act, between the legacy and the blocking streams
    std::shared_ptr<Stream> legacy;
    std::vector<std::shared_ptr<Stream>> blocking;
  };
  using StreamList = std::vector<std::shared_ptr<Stream>>;

  std::shared_ptr<Stream> add_stream(int device, StreamKind kind, int priority);
  std::shared_ptr<Stream> per_thread_stream(int device);
  std::vector<Point> implicit_waits(Device& device, const Stream& stream);
  // As they are now; keep the pointer while going over them.
  std::shared_ptr<const StreamList> streams() const;
  bool has_work_of_its_own() const;
  void drop_finished_orphans();
  void help(const Stream* except);
  void sleep_on_head(const Point& point, Backoff& backoff);
  void nap_until_rung(const std::vector<WaitPoint>& blocked, int64_t bound_ns);
  void start_progress();
  struct Round {
    bool moved = false;
    bool pending = false;
    std::vector<WaitPoint> blocked;
  };
  Round step_unwaited_streams();
  void progress_loop();

  std::vector<std::unique_ptr<Device>> devices_;
  mutable std::mutex mutex_;  // the registry below
  std::unordered_map<cudaStream_t, std::shared_ptr<Stream>> by_handle_;
  std::shared_ptr<const StreamList> all_ = std::make_shared<StreamList>();
  std::atomic<int> orphans_{0};  // destroyed streams that still have work

  std::once_flag heap_once_;
  std::unique_ptr<Heap> heap_;
  std::mutex peers_mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<PeerHeap>> peers_;  // by nonce

  std::once_flag progress_once_;
  Bell local_bell_;
  Bell progress_bell_;
  std::atomic<int> ranks_per_core_{1};
  std::atomic<bool> started_{false};
  std::atomic<bool> forked_{false};
};

Engine& engine();

}  // namespace lockstep::host
