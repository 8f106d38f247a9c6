// SPDX-License-Identifier: MIT
//
// See fault.h. The setting is read in fault_setting.cc.

#include "reference/nccl/fault.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "reference/nccl/fault_setting.h"
#include "reference/nccl/log.h"

namespace lockstep::nccl {
namespace {

thread_local std::vector<std::function<void()>> t_held;

void strike(const Fault& fault, Call& call, Faulted& faulted) {
  switch (fault.action) {
    case Fault::Action::skip:
      faulted.skip = true;
      break;
    case Fault::Action::delay:
      std::this_thread::sleep_for(std::chrono::duration<double>(fault.seconds));
      break;
    case Fault::Action::reorder:
      faulted.hold = true;
      break;
    case Fault::Action::count:
      call.count = static_cast<size_t>(fault.value);
      break;
    case Fault::Action::dtype:
      call.dtype = static_cast<ncclDataType_t>(fault.value);
      break;
    case Fault::Action::root:
      call.root = static_cast<int>(fault.value);
      break;
    case Fault::Action::op:
      call.op = static_cast<ncclRedOp_t>(fault.value);
      break;
    case Fault::Action::corrupt:
      call.corrupt = fault.value;
      call.corrupt_bit = fault.bit;
      break;
    case Fault::Action::fail:
      faulted.result = static_cast<ncclResult_t>(fault.value);
      warn("%s : made to fail by LOCKSTEP_HOST_FAULT", abi::find_function(call.fn)->name);
      break;
    case Fault::Action::kill:
      kill(getpid(), SIGKILL);
      break;
    case Fault::Action::stop:
      kill(getpid(), SIGSTOP);
      break;
  }
}

// Elements of what this rank receives.
size_t result_elements(const Comm& comm, const Call& call) {
  const bool elsewhere = (call.fn == abi::Fn::Reduce && comm.rank != call.root) || call.fn == abi::Fn::Send;
  if (elsewhere) return 0;
  return call.fn == abi::Fn::AllGather ? call.count * static_cast<size_t>(comm.nranks) : call.count;
}

}  // namespace

ncclResult_t check_fault_setting() {
  const FaultSetting& setting = fault_setting();
  if (setting.wrong.empty()) return ncclSuccess;
  warn_loudly("%s", setting.wrong.c_str());
  return ncclInvalidArgument;
}

Faulted apply_faults(const Comm& comm, Call& call) {
  Faulted faulted;
  for (Fault& fault : fault_setting().faults) {
    if (fault.rank != comm.world_rank || (fault.fn != abi::Fn::none && fault.fn != call.fn)) continue;
    if (fault.seen.fetch_add(1) + 1 == fault.call) strike(fault, call, faulted);
  }
  return faulted;
}

void spoil_result(const Comm& comm, const Call& call) {
  if (call.corrupt < 0 || static_cast<size_t>(call.corrupt) >= result_elements(comm, call)) return;
  const size_t size = abi::dtype_size(call.dtype);
  const size_t bit = call.corrupt_bit >= 0 ? static_cast<size_t>(call.corrupt_bit) % (8 * size) : 8 * size - 2;
  auto* const element = static_cast<std::byte*>(call.recv) + static_cast<size_t>(call.corrupt) * size;
  element[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
}

void hold_back(std::function<void()> call) { t_held.push_back(std::move(call)); }

void do_held_back() {
  if (t_held.empty()) return;
  for (const auto& call : std::exchange(t_held, {})) call();
}

}  // namespace lockstep::nccl
