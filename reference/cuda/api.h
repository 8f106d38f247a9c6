// SPDX-License-Identifier: MIT
//
// What the host's libnccl.so.2 asks of the host's libcuda.so.1, where all state of a process lives: one exported
// function that returns this interface. (libnccl must not bring streams or memory of its own: a stream handle made by
// whichever libcudart the program uses has to mean the same stream here.)

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda_runtime_api.h"
#include "reference/cuda/heap.h"
#include "reference/cuda/op.h"
#include "reference/cuda/stream.h"
#include "reference/cuda/work.h"

namespace lockstep::host {

class Api {
 public:
  // Not usable in a child forked after the parent had begun: its threads are not here. cudaSuccess otherwise.
  virtual cudaError_t ready() = 0;
  virtual cudaError_t
  lasting_error() = 0;  // cudaSuccess, or what every CUDA call of this process fails with from now on

  virtual int device_count() = 0;
  virtual int current_device() = 0;  // of the calling thread

  // nullptr: no such stream. The null handle means the legacy default stream of `device`.
  virtual std::shared_ptr<Stream> stream(cudaStream_t handle, int device) = 0;
  virtual Point submit(const std::shared_ptr<Stream>& stream, std::unique_ptr<Op> op, std::vector<Point> after) = 0;
  virtual bool anybody_captures() = 0;  // if not, capture() need not be called
  // Streams may be in capture: then nothing is submitted, and what was asked for becomes a node of a graph. To be
  // called before a submit(), with all streams the work stands in. If `captured` is true afterwards, `recipe` was taken
  // as the node, and is called each time the graph is launched, on a stream of the graph's choice and with what it has
  // to wait for; it submits the work there (as often as it is called, with what of its own the work waits for) and
  // returns the point of its end. Whatever it refers to it must keep alive. If `captured` is false and there is no
  // error, the caller submits as ever. Errors: cudaErrorStreamCaptureIsolation, some of the streams are captured and
  // some are not;
  // ...Merge, they are in different captures; ...Invalidated, their capture can take nothing any more; ...Implicit, one
  // is the legacy default stream, which would have to wait for a captured one.
  virtual cudaError_t capture(const std::vector<std::shared_ptr<Stream>>& streams, Recipe recipe, bool& captured) = 0;
  virtual Point tail(const std::shared_ptr<Stream>& stream) = 0;  // over when all its work of now is
  virtual void wait(const Point& point) = 0;                      // drains the stream meanwhile

  // nullptr: the process has no heap (no memory), or it is full.
  virtual void* allocate(size_t bytes, Memory memory, int device) = 0;
  virtual bool free(void* pointer) = 0;
  virtual std::optional<uint64_t> heap_offset(const void* pointer) = 0;  // nothing: not in the heap
  virtual HeapAddress heap_address() = 0;
  virtual std::shared_ptr<PeerHeap> peer_heap(const HeapAddress& address) = 0;  // nullptr: the peer is gone

  virtual Bell& local_bell() = 0;                     // what changed inside this process
  virtual void poke() = 0;                            // wakes the progress thread
  virtual void ranks_here(int ranks, int cores) = 0;  // so many ranks share so many cores, as far as known
  virtual int ranks_per_core() = 0;

 protected:
  ~Api() = default;
};

}  // namespace lockstep::host

extern "C" __attribute__((visibility("default"))) lockstep::host::Api* lockstep_host_api();
