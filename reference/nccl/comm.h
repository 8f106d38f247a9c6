// SPDX-License-Identifier: MIT
//
// One rank's side of a communicator.
//
// All operations of a communicator run one after the other in the order in which they were issued, whatever streams
// they were given, as in NCCL: each waits for the end of the one before it. The members marked so belong to the
// operation that runs, and need no lock.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"
#include "reference/cuda/api.h"
#include "reference/nccl/control.h"

namespace lockstep::nccl {

inline host::Api& api() {
  static host::Api& the_one = *lockstep_host_api();
  return the_one;
}

// One call, as the user made it. `root` is the peer of a Send or Recv.
struct Call {
  abi::Fn fn = abi::Fn::none;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  cudaStream_t stream = nullptr;

  size_t bytes() const { return count * abi::dtype_size(dtype); }
};

struct Comm {
  int rank = 0;
  int nranks = 0;
  int device = 0;
  uint64_t hash = 0;  // equal on all ranks; see interpose/abi/comm_hash.h
  int splits = 0;     // of this communicator so far
  std::string name;
  std::shared_ptr<Control> control;
  std::vector<bool> same_process;  // by rank
  bool all_same_process = false;

  std::atomic<bool> ready{false};
  std::atomic<bool> aborted{false};
  std::atomic<int> stepping{0};  // an operation of this communicator is at work this moment
  std::atomic<int> async_error{ncclSuccess};
  std::atomic<bool> finalized{false};

  std::mutex issue_mutex;  // "wait for the last one, then be the last one" is one act
  host::Point last;        // where the last operation is

  // The operation that runs:
  uint64_t phase = 0;                    // the next one to enter
  uint64_t collectives = 0;              // begun
  std::vector<uint64_t> sent, received;  // messages, by peer
  std::vector<std::shared_ptr<host::PeerHeap>> peer_heaps;

  // The one split at a time:
  uint64_t life_phase = 0;

  Member& self() { return control->member(rank); }
  // In this process's memory; nullptr: the peer is gone, nothing will come.
  const std::byte* reach(int peer, const Location& where);
  // Whether peers can read a buffer of ours where it is.
  bool reachable(const void* pointer) const;
  Location locate(const void* pointer) const;
};

ncclComm_t handle_of(const Comm& comm);
void register_comm(const std::shared_ptr<Comm>& comm);
void unregister_comm(const Comm& comm);
std::shared_ptr<Comm> find_comm(ncclComm_t handle);  // nullptr: no such communicator (any more)

// Something that takes part in a meeting of ranks on the host: joining a communicator, splitting one.
class Job {
 public:
  virtual ~Job() = default;
  virtual host::Step step() = 0;
  virtual host::Bell& bell() = 0;  // to sleep on while waiting
  virtual ncclResult_t result() const = 0;
};

// Runs jobs that may depend on each other (several ranks on one thread) to the end of all.
ncclResult_t run_jobs(const std::vector<std::unique_ptr<Job>>& jobs);

// On success *out is a communicator that works once the job is over.
ncclResult_t begin_init(const ncclUniqueId& id, int nranks, int rank, std::shared_ptr<Comm>& out,
                        std::unique_ptr<Job>& job);
// newcomm gets its handle, or NULL for a rank without a colour, when the job is over.
std::unique_ptr<Job> begin_split(std::shared_ptr<Comm> parent, int color, int key, ncclComm_t* newcomm);

ncclResult_t destroy(const std::shared_ptr<Comm>& comm);
void abort(const std::shared_ptr<Comm>& comm);

}  // namespace lockstep::nccl
