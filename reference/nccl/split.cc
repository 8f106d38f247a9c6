// SPDX-License-Identifier: MIT
//
// ncclCommSplit. All ranks of the parent meet twice: first everybody has said its colour and key; then the first rank
// of every new communicator has made and published its unique id, with which its members join as in ncclCommInitRank.

#include <algorithm>
#include <tuple>
#include <utility>

#include "interpose/abi/comm_hash.h"
#include "reference/nccl/comm.h"

namespace lockstep::nccl {
namespace {

using host::Step;

class SplitJob final : public Job {
 public:
  SplitJob(std::shared_ptr<Comm> parent, int color, int key, ncclComm_t* newcomm)
      : parent_(std::move(parent)), color_(color), key_(key), newcomm_(newcomm) {}

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
  uint64_t all(uint64_t phase) const { return static_cast<uint64_t>(parent_->nranks) * (phase + 1); }
  bool met() const { return parent_->control->header().life_arrivals.load() >= all(my_phase_); }
  Step arrive(State next) {
    Header& header = parent_->control->header();
    my_phase_ = parent_->life_phase++;
    if (header.life_arrivals.fetch_add(1) + 1 >= all(my_phase_)) header.life_bell.ring();
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
    index_ = static_cast<uint64_t>(parent_->splits++);
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
      if (leader_ == parent_->rank && make_unique_id(&record(leader_).id) != ncclSuccess) result_ = ncclSystemError;
    }
    return arrive(State::ids);
  }

  Step join() {
    if (color_ == NCCL_SPLIT_NOCOLOR) return over(ncclSuccess);
    const ncclUniqueId id = record(leader_).id;
    const ncclResult_t result = begin_init(id, size_, rank_, child_, child_job_);
    if (result != ncclSuccess) return over(result);
    child_->device = parent_->device;
    child_->hash = abi::comm_hash_of_child(parent_->hash, static_cast<int32_t>(index_) + 1, color_);
    state_ = State::joining;
    return Step::progressed;
  }
  Step joining() {
    const Step step = child_job_->step();
    if (step != Step::done) return step;
    if (child_job_->result() == ncclSuccess) *newcomm_ = handle_of(*child_);
    return over(child_job_->result());
  }

  const std::shared_ptr<Comm> parent_;
  const int color_;
  const int key_;
  ncclComm_t* const newcomm_;
  State state_ = State::start;
  ncclResult_t result_ = ncclSuccess;
  uint64_t index_ = 0;
  uint64_t my_phase_ = 0;
  int size_ = 0;
  int rank_ = 0;
  int leader_ = 0;
  std::shared_ptr<Comm> child_;
  std::unique_ptr<Job> child_job_;
};

}  // namespace

std::unique_ptr<Job> begin_split(std::shared_ptr<Comm> parent, int color, int key, ncclComm_t* newcomm) {
  return std::make_unique<SplitJob>(std::move(parent), color, key, newcomm);
}

}  // namespace lockstep::nccl
