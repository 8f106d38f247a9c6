// SPDX-License-Identifier: MIT
//
// See launch.h.

#include "reference/nccl/launch.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "reference/nccl/collective.h"
#include "reference/nccl/log.h"
#include "reference/nccl/messages.h"

namespace lockstep::nccl {
namespace {

using host::Step;

bool is_message(const Call& call) { return call.fn == abi::Fn::Send || call.fn == abi::Fn::Recv; }

// Shared by the operation and the places that hold its other streams back.
struct Gates {
  std::atomic<int> closed{0};  // streams that have not come to the group yet
  std::atomic<bool> over{false};
};

class Gate final : public host::Op {
 public:
  explicit Gate(std::shared_ptr<Gates> gates) : gates_(std::move(gates)) {}
  Step step() override {
    if (!reached_) {
      reached_ = true;
      gates_->closed.fetch_sub(1);
      api().local_bell().ring();
      return Step::progressed;
    }
    return gates_->over.load() ? Step::done : Step::waiting;
  }

 private:
  const std::shared_ptr<Gates> gates_;
  bool reached_ = false;
};

class Launch final : public host::Op {
 public:
  Launch(std::shared_ptr<Comm> comm, const std::vector<Call>& calls, uint64_t ticket, std::shared_ptr<Gates> gates)
      : comm_(std::move(comm)), ticket_(ticket), gates_(std::move(gates)), messages_(*comm_) {
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
    if (result != Step::done) return result;
    comm_->turn.store(ticket_ + 1);
    gates_->over.store(true);
    api().local_bell().ring();
    return Step::done;
  }

  host::WaitPoint wait_point() override {
    if (!working()) return {};
    host::Bell* const bell = collectives_.empty() ? &comm_->self().bell : &comm_->control->header().bell;
    return {comm_->control, bell};
  }

 private:
  bool working() const { return comm_->turn.load() == ticket_ && gates_->closed.load() == 0; }
  Step work() {
    if (!working()) return Step::waiting;
    if (collectives_.empty()) return messages_.step();
    const Step step = collectives_.front().step();
    if (step != Step::done) return step;
    collectives_.pop_front();
    return collectives_.empty() && messages_.empty() ? Step::done : Step::progressed;
  }

  const std::shared_ptr<Comm> comm_;
  const uint64_t ticket_;
  const std::shared_ptr<Gates> gates_;
  std::deque<Collective> collectives_;
  Messages messages_;
};

ncclResult_t streams_of(const Comm& comm, const std::vector<Call>& calls,
                        std::vector<std::shared_ptr<host::Stream>>& streams) {
  for (const Call& call : calls) {
    auto stream = api().stream(call.stream, comm.device);
    if (!stream) {
      warn("Cuda failure 'invalid resource handle': stream %p does not exist", static_cast<void*>(call.stream));
      return ncclUnhandledCudaError;
    }
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(std::move(stream));
  }
  return ncclSuccess;
}

}  // namespace

ncclResult_t check_launch(const Comm& comm, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<host::Stream>> streams;
  if (const ncclResult_t result = streams_of(comm, calls, streams); result != ncclSuccess) return result;
  return self_messages_pair(comm, calls) ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t launch(const std::shared_ptr<Comm>& comm, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<host::Stream>> streams;
  if (const ncclResult_t result = streams_of(*comm, calls, streams); result != ncclSuccess) return result;
  auto gates = std::make_shared<Gates>();
  gates->closed.store(static_cast<int>(streams.size()) - 1);
  const std::lock_guard lock(comm->issue_mutex);
  auto work = std::make_unique<Launch>(comm, calls, comm->issued++, gates);
  comm->last = api().submit(streams.front(), std::move(work), {});
  for (size_t s = 1; s < streams.size(); ++s) api().submit(streams[s], std::make_unique<Gate>(gates), {});
  return ncclSuccess;
}

}  // namespace lockstep::nccl
