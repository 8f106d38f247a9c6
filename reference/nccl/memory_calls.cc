// SPDX-License-Identifier: MIT
//
// NCCL's functions for memory: allocation, buffer registration, windows.

#include "cuda_runtime_api.h"
#include "reference/nccl/calls.h"
#include "reference/nccl/checks.h"
#include "reference/nccl/group.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {

void* Registrations::add(const void* buffer, size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (auto& [handle, entry] : entries_) {
    if (entry->buffer != buffer || entry->bytes != bytes) continue;
    ++entry->uses;
    return entry.get();
  }
  auto entry = std::make_unique<Entry>(Entry{buffer, bytes, 1});
  Entry* const handle = entry.get();
  entries_.emplace(handle, std::move(entry));
  return handle;
}

bool Registrations::remove(const void* handle) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(handle);
  if (found == entries_.end()) return false;
  if (--found->second->uses == 0) entries_.erase(found);
  return true;
}

namespace {

bool local_registration() { return int_setting("NCCL_LOCAL_REGISTER", 1) != 0; }

// Windows are made by all ranks together, and have a handle when all are there.
class WindowJob final : public Job {
 public:
  WindowJob(const std::shared_ptr<Comm>& comm, void* buffer, size_t bytes, ncclWindow_t* out)
      : comm_(comm), buffer_(buffer), bytes_(bytes), out_(out), meeting_(begin_meeting(comm)) {}
  host::Step step() override {
    if (over_) return host::Step::done;
    const host::Step step = meeting_->step();
    if (step != host::Step::done) return step;
    over_ = true;
    if (result() == ncclSuccess) *out_ = static_cast<ncclWindow_t>(comm_->registrations.add(buffer_, bytes_));
    return host::Step::done;
  }
  host::Bell& bell() override { return meeting_->bell(); }
  ncclResult_t result() const override { return meeting_->result(); }

 private:
  const std::shared_ptr<Comm> comm_;
  void* const buffer_;
  const size_t bytes_;
  ncclWindow_t* const out_;
  const std::unique_ptr<Job> meeting_;
  bool over_ = false;
};

}  // namespace

// What cannot be allocated is given to cudaMalloc, whose answer is the one the caller gets, as in NCCL.
ncclResult_t run(Tag<Fn::MemAlloc>, void** ptr, size_t size) {
  if (const ncclResult_t result = cuda_works(); result != ncclSuccess) return result;
  if (ptr == nullptr) {
    warn("Cuda failure 'invalid argument'");
    return ncclUnhandledCudaError;
  }
  *ptr = size == 0 ? nullptr : api().allocate(size, host::Memory::device, api().current_device());
  if (*ptr != nullptr || size == 0) return ncclSuccess;
  warn("Cuda failure 'out of memory'");
  return ncclUnhandledCudaError;
}

ncclResult_t run(Tag<Fn::MemFree>, void* ptr) {
  if (const ncclResult_t result = cuda_works(); result != ncclSuccess) return result;
  if (ptr == nullptr || api().free(ptr)) return ncclSuccess;
  warn("Cuda failure 'invalid argument'");
  return ncclUnhandledCudaError;
}

ncclResult_t run(Tag<Fn::CommRegister>, ncclComm_t handle, void* buff, size_t size, void** out) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("ncclCommRegister", handle, comm); result != ncclSuccess) return result;
  if (out == nullptr) return check_pointer("ncclCommRegister", "handle", out);
  *out = local_registration() ? comm->registrations.add(buff, size) : nullptr;
  return ncclSuccess;
}

ncclResult_t run(Tag<Fn::CommDeregister>, ncclComm_t handle, void* registered) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("ncclCommRegister", handle, comm); result != ncclSuccess) return result;
  if (registered == nullptr || comm->registrations.remove(registered)) return ncclSuccess;
  warn("Deregister: Could not find handle");
  return ncclInvalidUsage;
}

ncclResult_t run(Tag<Fn::CommWindowRegister>, ncclComm_t handle, void* buff, size_t size, ncclWindow_t* win, int) {
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up_ready("ncclCommWindowRegister", handle, comm); result != ncclSuccess)
    return group_error(result);
  if (buff == nullptr || size == 0) return ncclSuccess;  // *win stays as it is
  if (const ncclResult_t result = check_pointer("ncclCommWindowRegister", "win", win); result != ncclSuccess)
    return group_error(result);
  if (!api().heap_offset(buff)) {
    warn("Cuda failure 'invalid argument': a window must be CUDA memory");
    return group_error(ncclUnhandledCudaError);
  }
  return run_or_queue(std::make_unique<WindowJob>(comm, buff, size, win), comm);
}

ncclResult_t run(Tag<Fn::CommWindowDeregister>, ncclComm_t handle, ncclWindow_t win) {
  if (win == nullptr) return ncclSuccess;
  std::shared_ptr<Comm> comm;
  if (const ncclResult_t result = look_up("ncclCommWindowDeregister", handle, comm); result != ncclSuccess)
    return result;
  if (comm->registrations.remove(win)) return ncclSuccess;
  warn("Deregister: Could not find handle");
  return ncclInvalidUsage;
}

}  // namespace lockstep::nccl
