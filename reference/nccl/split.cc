// SPDX-License-Identifier: MIT
//
// ncclCommSplit. All ranks of the parent meet twice: first everybody has said its colour and key; then the first rank
// of every new communicator has made and published its unique id, with which its members join as in ncclCommInitRank.
// And the meeting of all ranks by itself, for calls that need nothing else.

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "reference/nccl/comm.h"

namespace lockstep::nccl {
namespace {

using host::Step;

bool have_met(Comm& comm, uint64_t phase) {
  return comm.control->header().life_arrivals.load() >= static_cast<uint64_t>(comm.nranks) * (phase + 1);
}
uint64_t arrive(Comm& comm) {
  Header& header = comm.control->header();
  const uint64_t phase = comm.life_phase++;
  header.life_arrivals.fetch_add(1);
  if (have_met(comm, phase)) header.life_bell.ring();
  return phase;
}

class MeetingJob final : public Job {
 public:
  explicit MeetingJob(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}
  Step step() override {
    if (!begun_) {
      begun_ = true;
      phase_ = arrive(*comm_);
      return Step::progressed;
    }
    return comm_->aborted.load() || have_met(*comm_, phase_) ? Step::done : Step::waiting;
  }
  host::Bell& bell() override { return comm_->control->header().life_bell; }
  ncclResult_t result() const override { return comm_->aborted.load() ? ncclInternalError : ncclSuccess; }

 private:
  const std::shared_ptr<Comm> comm_;
  bool begun_ = false;
  uint64_t phase_ = 0;
};

class SplitJob final : public Job {
 public:
  SplitJob(std::shared_ptr<Comm> parent, int color, int key, CommConfig config, ncclComm_t* newcomm)
      : parent_(std::move(parent)), color_(color), key_(key), config_(std::move(config)), newcomm_(newcomm) {}
  ~SplitJob() override {
    if (made_id_ && !(state_ == State::over && result_ == ncclSuccess)) forget_unique_id(*made_id_);
    if (child_) unregister_comm(*child_);  // nobody got it
  }
  SplitJob(const SplitJob&) = delete;
  SplitJob& operator=(const SplitJob&) = delete;

  Step step() override {
    switch (state_) {
      case State::start:
        return start();
      case State::colors:
        return met() ? choose() : waiting();
      case State::ids:
        return met() ? join() : waiting();
      case State::joining:
        return joining();
      case State::over:
        break;
    }
    return Step::done;
  }
  host::Bell& bell() override { return child_job_ ? child_job_->bell() : parent_->control->header().life_bell; }
  ncclResult_t result() const override { return result_; }

 private:
  enum class State { start, colors, ids, joining, over };

  LifeRecord& record(int rank) const { return parent_->control->member(rank).life[index_ % 2]; }
  bool met() const { return have_met(*parent_, my_phase_); }
  Step arrive(State next) {
    my_phase_ = lockstep::nccl::arrive(*parent_);
    state_ = next;
    return Step::progressed;
  }
  Step over(ncclResult_t result) {
    result_ = result;
    state_ = State::over;
    return Step::done;
  }
  // An abort of the parent gets its waiting ranks out.
  Step waiting() { return parent_->aborted.load() ? over(ncclInternalError) : Step::waiting; }

  Step start() {
    index_ = parent_->life_count++;
    split_number_ = ++parent_->splits;
    LifeRecord& mine = record(parent_->rank);
    mine.color = color_;
    mine.key = key_;
    return arrive(State::colors);
  }

  // New ranks go by key, then by the old rank.
  Step choose() {
    if (color_ != NCCL_SPLIT_NOCOLOR) {
      std::vector<std::pair<int, int>> members;
      for (int r = 0; r < parent_->nranks; ++r)
        if (record(r).color == color_) members.emplace_back(record(r).key, r);
      std::sort(members.begin(), members.end());
      size_ = static_cast<int>(members.size());
      leader_ = members.front().second;
      for (int i = 0; i < size_; ++i)
        if (members[static_cast<size_t>(i)].second == parent_->rank) rank_ = i;
      if (leader_ == parent_->rank) make_id();
    }
    return arrive(State::ids);
  }

  void make_id() {
    ncclUniqueId& id = record(leader_).id;
    if (make_unique_id(&id) == ncclSuccess)
      made_id_ = id;
    else
      result_ = ncclSystemError;
  }

  Step join() {
    if (color_ == NCCL_SPLIT_NOCOLOR) return over(ncclSuccess);
    InitRequest request;
    request.name = "ncclCommSplit";
    request.id = record(leader_).id;
    request.nranks = size_;
    request.rank = rank_;
    request.device = parent_->device;
    request.config = config_;
    request.parent = parent_.get();
    request.split_count = split_number_;
    request.color = color_;
    request.key = key_;
    const ncclResult_t result = begin_init(request, child_, child_job_);
    if (result != ncclSuccess) return over(result);
    state_ = State::joining;
    return Step::progressed;
  }
  Step joining() {
    if (parent_->aborted.load()) child_->aborted.store(true);  // a peer that was aborted earlier may never join
    const Step step = child_job_->step();
    if (step != Step::done) return step;
    if (child_job_->result() != ncclSuccess) return over(child_job_->result());
    __atomic_store_n(newcomm_, handle_of(*child_), __ATOMIC_RELEASE);
    child_.reset();  // the caller's now
    return over(ncclSuccess);
  }

  const std::shared_ptr<Comm> parent_;
  const int color_;
  const int key_;
  const CommConfig config_;
  ncclComm_t* const newcomm_;
  State state_ = State::start;
  ncclResult_t result_ = ncclSuccess;
  uint64_t index_ = 0;    // among the meetings of the parent, for the record's place
  int split_number_ = 0;  // among its splits and shrinks, for the child's identity
  uint64_t my_phase_ = 0;
  int size_ = 0;
  int rank_ = 0;
  int leader_ = 0;
  std::optional<ncclUniqueId> made_id_;  // of the child, by its first rank
  std::shared_ptr<Comm> child_;
  std::unique_ptr<Job> child_job_;
};

}  // namespace

std::unique_ptr<Job> begin_split(std::shared_ptr<Comm> parent, int color, int key, const CommConfig& config,
                                 ncclComm_t* newcomm) {
  return std::make_unique<SplitJob>(std::move(parent), color, key, config, newcomm);
}
std::unique_ptr<Job> begin_meeting(std::shared_ptr<Comm> comm) { return std::make_unique<MeetingJob>(std::move(comm)); }

}  // namespace lockstep::nccl
