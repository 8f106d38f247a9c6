// SPDX-License-Identifier: MIT
//
// See launch.h.

#include "reference/nccl/launch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "reference/nccl/collective.h"
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
  Launch(std::shared_ptr<Comm> comm, const std::vector<Call>& calls) : comm_(std::move(comm)), messages_(*comm_) {
    collectives_.reserve(static_cast<size_t>(std::count_if(calls.begin(), calls.end(), std::not_fn(is_message))));
    for (const Call& call : calls) {
      if (is_message(call))
        messages_.add(call);
      else
        collectives_.emplace_back(*comm_, call);
    }
  }

  // Whoever aborts waits for `stepping` to become zero; see abort().
  Step step() override {
    comm_->stepping.fetch_add(1);
    const Step result = comm_->aborted.load() ? Step::done : work();
    comm_->stepping.fetch_sub(1);
    return result;
  }

  host::WaitPoint wait_point() override {
    host::Bell* const bell = next_ == collectives_.size() ? &comm_->self().bell : &comm_->control->header().bell;
    return {comm_->control, bell};
  }

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
  std::vector<Collective> collectives_;
  size_t next_ = 0;  // of them
  Messages messages_;
};

std::shared_ptr<host::Stream> stream_of(const Comm& comm, const Call& call) {
  auto stream = api().stream(call.stream, comm.device);
  if (!stream)
    warn("Cuda failure 'invalid resource handle': stream %p does not exist", static_cast<void*>(call.stream));
  return stream;
}

ncclResult_t streams_of(const Comm& comm, const std::vector<Call>& calls,
                        std::vector<std::shared_ptr<host::Stream>>& streams) {
  for (const Call& call : calls) {
    auto stream = stream_of(comm, call);
    if (!stream) return ncclUnhandledCudaError;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(std::move(stream));
  }
  return ncclSuccess;
}

// With issue_mutex held. Most of the time the last operation is over, and there is nothing to wait for.
std::vector<host::Point> after_the_last(const Comm& comm) {
  if (comm.last.reached()) return {};
  return {comm.last};
}

}  // namespace

ncclResult_t launch_one(const std::shared_ptr<Comm>& comm, const Call& call) {
  auto stream = stream_of(*comm, call);
  if (!stream) return ncclUnhandledCudaError;
  const std::vector<Call> calls{call};
  if (!self_messages_pair(*comm, calls)) return ncclInvalidUsage;
  const std::lock_guard lock(comm->issue_mutex);
  comm->last = api().submit(stream, std::make_unique<Launch>(comm, calls), after_the_last(*comm));
  return ncclSuccess;
}

ncclResult_t check_launch(const Comm& comm, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<host::Stream>> streams;
  if (const ncclResult_t result = streams_of(comm, calls, streams); result != ncclSuccess) return result;
  return self_messages_pair(comm, calls) ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t launch(const std::shared_ptr<Comm>& comm, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<host::Stream>> streams;
  if (const ncclResult_t result = streams_of(*comm, calls, streams); result != ncclSuccess) return result;
  const std::lock_guard lock(comm->issue_mutex);
  std::vector<host::Point> after = after_the_last(*comm);
  for (size_t s = 1; s < streams.size(); ++s) after.push_back(api().tail(streams[s]));
  comm->last = api().submit(streams.front(), std::make_unique<Launch>(comm, calls), std::move(after));
  for (size_t s = 1; s < streams.size(); ++s) api().submit(streams[s], std::make_unique<Marker>(), {comm->last});
  return ncclSuccess;
}

}  // namespace lockstep::nccl
