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
#include <span>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"
#include "reference/cuda/api.h"
#include "reference/nccl/config.h"
#include "reference/nccl/control.h"
#include "reference/nccl/redop.h"
#include "reference/nccl/reduce.h"
#include "reference/nccl/registration.h"

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

  // Set where the arguments are checked:
  Arithmetic arithmetic = Arithmetic::sum;
  uint64_t scale = 0;              // see Input in reduce.h
  const void* scale_at = nullptr;  // where that is read when the operation starts, if not null
  int64_t corrupt = -1;            // element of the result to spoil; see fault.h
  int corrupt_bit = -1;
  std::shared_ptr<host::Stream> queue = nullptr;  // what `stream` meant to the caller; nullptr: nothing

  uint64_t scale_now() const;
  size_t bytes() const { return count * abi::dtype_size(dtype); }
};

using Calls = std::span<const Call>;

struct GroupWork;  // see group.h

struct Comm {
  int rank = 0;
  int nranks = 0;
  int device = 0;
  uint64_t hash = 0;   // equal on all ranks; see interpose/abi/comm_hash.h
  int splits = 0;      // and shrinks, of this communicator so far
  int world_rank = 0;  // for LOCKSTEP_HOST_FAULT; see fault.h
  CommConfig config;
  std::shared_ptr<Control> control;
  std::vector<bool> same_process;  // by rank
  bool all_same_process = false;

  std::atomic<bool> ready{false};
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  std::atomic<int> stepping{0};  // an operation of this communicator is at work this moment
  // ncclInProgress: a nonblocking communicator's last call is still at work on a thread of its own.
  std::atomic<int> async_error{ncclSuccess};
  std::atomic<bool> finalized{false};

  std::mutex issue_mutex;            // "wait for the last one, then be the last one" is one act
  host::Point last;                  // where the last operation is
  std::atomic<uint64_t> issued{0};   // operations so far
  std::atomic<uint64_t> dropped{0};  // so many of them end at their next step: cut off by a revoke or a shrink
  std::atomic<uint64_t> calls{0};    // operations asked for, for log lines
  UserOps user_ops;
  Registrations registrations;

  std::mutex work_mutex;            // and of `control`, until there is one
  std::shared_ptr<GroupWork> work;  // the nonblocking call that is at work

  // The operation that runs:
  uint64_t phase = 0;                    // the next one to enter
  uint64_t collectives = 0;              // begun
  std::vector<uint64_t> sent, received;  // messages, by peer
  std::vector<std::shared_ptr<host::PeerHeap>> peer_heaps;

  // The one split, shrink or window at a time:
  uint64_t life_phase = 0;
  uint64_t life_count = 0;
  std::vector<uint64_t> shrinks_used;  // by leader; see shrink.cc

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

// Something that takes its time, and may depend on what other ranks do: joining a communicator, splitting one, its end.
class Job {
 public:
  virtual ~Job() = default;
  virtual host::Step step() = 0;
  virtual host::Bell& bell() = 0;  // to sleep on while waiting
  virtual ncclResult_t result() const = 0;
};

// Runs jobs that may depend on each other (several ranks on one thread) to the end of all, or until `given_up`.
ncclResult_t run_jobs(const std::vector<std::unique_ptr<Job>>& jobs, const std::atomic<bool>* given_up = nullptr);

struct InitRequest {
  const char* name = "";  // of the call
  ncclUniqueId id{};
  int nranks = 0;
  int rank = 0;
  int device = 0;
  bool all_on_one_thread = false;  // ncclCommInitAll
  CommConfig config;
  // For a child:
  const Comm* parent = nullptr;
  int split_count = 0;
  int color = 0;
  int key = 0;
};
// On success `out` is a communicator that works once the job is over.
ncclResult_t begin_init(const InitRequest& request, std::shared_ptr<Comm>& out, std::unique_ptr<Job>& job);
// newcomm gets its handle, or NULL for a rank without a colour, when the job is over.
std::unique_ptr<Job> begin_split(std::shared_ptr<Comm> parent, int color, int key, const CommConfig& config,
                                 ncclComm_t* newcomm);
// `excluded` is sorted and does not hold the caller.
std::unique_ptr<Job> begin_shrink(std::shared_ptr<Comm> parent, std::vector<int> excluded, const CommConfig& config,
                                  ncclComm_t* newcomm);
// Over when all ranks of the communicator are there.
std::unique_ptr<Job> begin_meeting(std::shared_ptr<Comm> comm);
// Over when what has been issued is. Then the communicator is finished with, if it is to be destroyed.
std::unique_ptr<Job> begin_end(std::shared_ptr<Comm> comm, bool destroys);

// Operations issued so far end at their next step; when this returns none of them touches the user's memory any more.
void drop_operations(Comm& comm);
void abort(const std::shared_ptr<Comm>& comm);

// "0000:07:00.0" as a number, as NCCL's lines have it.
inline long bus_id(const Comm& comm) { return static_cast<long>(comm.device + 1) << 12; }

}  // namespace lockstep::nccl
