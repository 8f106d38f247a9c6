// SPDX-License-Identifier: MIT
//
// See launch.h.

#include "reference/nccl/launch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "interpose/include/lockstep.h"
#include "reference/nccl/checks.h"
#include "reference/nccl/collective.h"
#include "reference/nccl/fault.h"
#include "reference/nccl/log.h"
#include "reference/nccl/messages.h"

namespace lockstep::nccl {
namespace {

using host::Step;

bool is_message(const Call& call) { return call.fn == abi::Fn::Send || call.fn == abi::Fn::Recv; }

// Holds a stream up until what submit() was told is over.
class Marker final : public host::Op {
 public:
  Step step() override { return Step::done; }
};

class Launch final : public host::Op {
 public:
  // `number`: of this operation among those of the communicator, from 1.
  Launch(std::shared_ptr<Comm> comm, Calls calls, uint64_t number)
      : comm_(std::move(comm)), fn_(calls.front().fn), number_(number), messages_(*comm_) {
    collectives_.reserve(static_cast<size_t>(std::count_if(calls.begin(), calls.end(), std::not_fn(is_message))));
    for (const Call& call : calls) {
      if (call.corrupt >= 0) spoiled_.push_back(call);
      if (is_message(call))
        messages_.add(call);
      else
        collectives_.emplace_back(*comm_, call);
    }
  }

  // Whoever cuts operations off waits for `stepping` to become zero; see abort().
  Step step() override {
    comm_->stepping.fetch_add(1);
    const bool cut_off = comm_->aborted.load() || number_ <= comm_->dropped.load();
    const Step result = cut_off ? Step::done : work();
    if (result == Step::done && !cut_off)
      for (const Call& call : spoiled_) spoil_result(*comm_, call);
    comm_->stepping.fetch_sub(1);
    return result;
  }

  host::WaitPoint wait_point() override {
    host::Bell* const bell = next_ == collectives_.size() ? &comm_->self().bell : &comm_->control->header().bell;
    return {comm_->control, bell};
  }
  host::Activity activity() const override { return {LOCKSTEP_ACTIVITY_NCCL, abi::find_function(fn_)->name}; }

 private:
  // Collectives first, in order; then all messages at once.
  Step work() {
    if (next_ == collectives_.size()) return messages_.step();
    const Step step = collectives_[next_].step();
    if (step != Step::done) return step;
    ++next_;
    return next_ == collectives_.size() && messages_.empty() ? Step::done : Step::progressed;
  }

  const std::shared_ptr<Comm> comm_;
  const abi::Fn fn_;
  const uint64_t number_;
  std::vector<Collective> collectives_;
  size_t next_ = 0;  // of them
  Messages messages_;
  std::vector<Call> spoiled_;  // by a fault; see fault.h
};

ncclResult_t check_queue(const Call& call) {
  if (const ncclResult_t result = cuda_works(); result != ncclSuccess) return result;
  if (call.queue) return ncclSuccess;
  warn("Cuda failure 'invalid resource handle': stream %p does not exist", static_cast<void*>(call.stream));
  return ncclUnhandledCudaError;
}

using Streams = std::vector<std::shared_ptr<host::Stream>>;

Streams streams_of(Calls calls) {
  Streams streams;
  for (const Call& call : calls)
    if (std::find(streams.begin(), streams.end(), call.queue) == streams.end()) streams.push_back(call.queue);
  return streams;
}

// Makes a new operation of the calls each time it is called, with its place in the communicator's order of now. Most of
// the time the last operation is over, and there is nothing to wait for.
host::Point start(const std::shared_ptr<Comm>& comm, Calls calls, const std::shared_ptr<host::Stream>& stream,
                  std::vector<host::Point> after) {
  const std::lock_guard lock(comm->issue_mutex);
  const uint64_t number = comm->issued.fetch_add(1) + 1;
  if (!comm->last.reached()) after.push_back(comm->last);
  comm->last = api().submit(stream, std::make_unique<Launch>(comm, calls, number), std::move(after));
  return comm->last;
}

ncclResult_t check_call(const Comm& comm, const Call& call) {
  if (const ncclResult_t result = check_queue(call); result != ncclSuccess) return result;
  Algorithm algorithm{};
  return is_message(call) ? ncclSuccess : choose_algorithm(comm, call, algorithm);
}

// Streams in capture take the calls as a node of a graph, which starts them anew with each launch.
ncclResult_t capture_now(const std::shared_ptr<Comm>& comm, Calls calls, bool& captured) {
  const auto recipe = [comm, kept = std::vector<Call>(calls.begin(), calls.end())](
                          const std::shared_ptr<host::Stream>& stream, std::vector<host::Point> after) {
    return start(comm, kept, stream, std::move(after));
  };
  const cudaError_t error = api().capture(streams_of(calls), recipe, captured);
  if (error == cudaSuccess) return ncclSuccess;
  if (error == cudaErrorStreamCaptureIsolation || error == cudaErrorStreamCaptureMerge) {
    warn(
        "Streams given to a communicator within a NCCL group must either be all uncaptured or all captured by the "
        "same graph.");
    return ncclInvalidUsage;
  }
  warn("Cuda failure %d: a stream in capture cannot take this operation", static_cast<int>(error));
  return ncclUnhandledCudaError;
}
ncclResult_t capture(const std::shared_ptr<Comm>& comm, Calls calls, bool& captured) {
  return api().anybody_captures() ? capture_now(comm, calls, captured) : ncclSuccess;
}

}  // namespace

ncclResult_t launch_one(const std::shared_ptr<Comm>& comm, Call call) {
  if (const ncclResult_t result = check_call(*comm, call); result != ncclSuccess) return result;
  const Calls calls(&call, 1);
  if (!self_messages_pair(*comm, calls)) return ncclInvalidUsage;
  bool captured = false;
  if (const ncclResult_t result = capture(comm, calls, captured); result != ncclSuccess || captured) return result;
  if (runs_into_nothing(*comm, call)) return ncclSuccess;
  const auto queue = std::move(call.queue);  // what is kept of the call has no use for it
  start(comm, calls, queue, {});
  return ncclSuccess;
}

ncclResult_t check_launch(const Comm& comm, Calls calls) {
  for (const Call& call : calls)
    if (const ncclResult_t result = check_call(comm, call); result != ncclSuccess) return result;
  return self_messages_pair(comm, calls) ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t launch(const std::shared_ptr<Comm>& comm, Calls calls) {
  bool captured = false;
  if (const ncclResult_t result = capture(comm, calls, captured); result != ncclSuccess || captured) return result;
  for (const Call& call : calls)
    if (runs_into_nothing(*comm, call)) return ncclSuccess;
  const Streams streams = streams_of(calls);
  std::vector<host::Point> after;
  for (size_t s = 1; s < streams.size(); ++s) after.push_back(api().tail(streams[s]));
  const host::Point end = start(comm, calls, streams.front(), std::move(after));
  for (size_t s = 1; s < streams.size(); ++s) api().submit(streams[s], std::make_unique<Marker>(), {end});
  return ncclSuccess;
}

}  // namespace lockstep::nccl
