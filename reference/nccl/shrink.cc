// SPDX-License-Identifier: MIT
//
// ncclCommShrink: a communicator of the ranks that are not excluded. The excluded ones do not call, and may be dead, so
// the ranks of the parent cannot meet: the first that goes on makes the unique id and posts it in its own record, the
// others look for it there, and all join with it as in ncclCommInitRank.
//
// Ranks know the record meant for them by the list of members in it, and by its number, which they have not used yet.
// A record is read by all it is for before it can be overwritten, because the leader's shrink is over only when all
// have joined. (Another rank may see it being written: then its number is odd.)

#include <algorithm>
#include <optional>
#include <utility>

#include "interpose/abi/comm_hash.h"
#include "reference/nccl/comm.h"

namespace lockstep::nccl {
namespace {

using host::Step;

class ShrinkJob final : public Job {
 public:
  ShrinkJob(std::shared_ptr<Comm> parent, const std::vector<int>& excluded, CommConfig config, ncclComm_t* newcomm)
      : parent_(std::move(parent)), config_(std::move(config)), newcomm_(newcomm) {
    for (int r = 0; r < parent_->nranks; ++r)
      if (!std::binary_search(excluded.begin(), excluded.end(), r)) members_.push_back(r);
  }

  ~ShrinkJob() override {
    if (made_id_ && !(over_ && result_ == ncclSuccess)) forget_unique_id(*made_id_);
    if (child_) unregister_comm(*child_);  // nobody got it
  }
  ShrinkJob(const ShrinkJob&) = delete;
  ShrinkJob& operator=(const ShrinkJob&) = delete;

  Step step() override {
    if (over_) return Step::done;
    if (split_number_ == 0) return start();
    if (!child_job_) return is_posted() ? join() : waiting();
    if (parent_->aborted.load()) child_->aborted.store(true);  // a peer that was aborted earlier may never join
    const Step step = child_job_->step();
    if (step != Step::done) return step;
    if (child_job_->result() != ncclSuccess) return end(child_job_->result());
    __atomic_store_n(newcomm_, handle_of(*child_), __ATOMIC_RELEASE);
    child_.reset();  // the caller's now
    return end(ncclSuccess);
  }
  host::Bell& bell() override { return child_job_ ? child_job_->bell() : parent_->control->header().life_bell; }
  ncclResult_t result() const override { return result_; }

 private:
  ShrinkRecord& record() const { return parent_->control->member(members_.front()).shrink; }
  Step waiting() { return parent_->aborted.load() ? end(ncclInternalError) : Step::waiting; }
  Step end(ncclResult_t result) {
    result_ = result;
    over_ = true;
    return Step::done;
  }

  Step start() {
    split_number_ = ++parent_->splits;
    if (parent_->rank != members_.front()) return Step::progressed;
    ncclUniqueId id;
    if (const ncclResult_t made = make_unique_id(&id); made != ncclSuccess) return end(made);
    made_id_ = id;
    ShrinkRecord& mine = record();
    mine.posted.fetch_add(1);
    mine.id = id;
    mine.members.store(members_hash());
    mine.posted.fetch_add(1);
    parent_->control->header().life_bell.ring();
    return Step::progressed;
  }
  bool is_posted() {
    uint64_t& used = parent_->shrinks_used[static_cast<size_t>(members_.front())];
    const uint64_t number = record().posted.load();
    if (number % 2 != 0 || number <= used || record().members.load() != members_hash()) return false;
    used = number;
    return true;
  }
  uint64_t members_hash() const {
    return abi::comm_hash_of_unique_id(members_.data(), members_.size() * sizeof members_[0]);
  }

  Step join() {
    InitRequest request;
    request.name = "ncclCommShrink";
    request.id = record().id;
    request.nranks = static_cast<int>(members_.size());
    request.rank = static_cast<int>(std::find(members_.begin(), members_.end(), parent_->rank) - members_.begin());
    request.device = parent_->device;
    request.config = config_;
    request.parent = parent_.get();
    request.split_count = split_number_;
    request.key = parent_->rank;
    if (const ncclResult_t begun = begin_init(request, child_, child_job_); begun != ncclSuccess) return end(begun);
    return Step::progressed;
  }

  const std::shared_ptr<Comm> parent_;
  const CommConfig config_;
  ncclComm_t* const newcomm_;
  std::vector<int> members_;  // ranks of the parent that go on
  int split_number_ = 0;
  std::optional<ncclUniqueId> made_id_;  // of the child, by its first rank
  bool over_ = false;
  ncclResult_t result_ = ncclSuccess;
  std::shared_ptr<Comm> child_;
  std::unique_ptr<Job> child_job_;
};

}  // namespace

std::unique_ptr<Job> begin_shrink(std::shared_ptr<Comm> parent, std::vector<int> excluded, const CommConfig& config,
                                  ncclComm_t* newcomm) {
  return std::make_unique<ShrinkJob>(std::move(parent), excluded, config, newcomm);
}

}  // namespace lockstep::nccl
