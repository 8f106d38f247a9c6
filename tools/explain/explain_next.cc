// SPDX-License-Identifier: MIT
#include "tools/explain/explain_parts.h"

namespace lockstep {

std::string next_of(const Finding& finding) {
  switch (finding.kind) {
    case Kind::missing_call:
      return "look at the function it sits in and at the condition that led there: unequal batch counts, a test of the "
             "rank, or a decision made by one rank alone";
    case Kind::left_early:
      return "compare how many steps or batches each rank was given, and make all ranks leave the loop by a common "
             "decision";
    case Kind::died:
      return "read that rank's own log and core dump at the time of its end; the other ranks are victims";
    case Kind::op_mismatch:
      return "compare the two stacks: the ranks took different branches before this call";
    case Kind::count_mismatch:
      return "compare the sizes that lead to this call on both ranks: batch, padding, or a shape decided by one rank "
             "alone";
    case Kind::dtype_mismatch:
      return "compare the data types on both ranks: mixed precision or a configuration that differs";
    case Kind::redop_mismatch:
      return "compare the reduction passed on both ranks; sum and average differ by the number of ranks";
    case Kind::root_mismatch:
      return "check whether a global rank was passed where a rank of the communicator is meant";
    case Kind::init_incomplete:
      return "find out why it never came to create the communicator: an error before it, or a condition that left it "
             "out";
    case Kind::cross_communicator_cycle:
      return "give all ranks one order in which they use these communicators";
    case Kind::p2p_cycle:
      return "put sends and receives that depend on each other between ncclGroupStart and ncclGroupEnd";
    case Kind::p2p_unmatched:
      return "check which peer and how many messages each of the two ranks believes in";
    case Kind::stalled_together:
      return "the calls agree, so look below them: device state, other streams, network and NCCL's own log "
             "(NCCL_DEBUG=INFO) on every node";
    case Kind::missing_trace:
      return "find out whether that rank ran at all and where it wrote its trace, then diagnose again with it";
    case Kind::straggler:
      return "see what the late rank does; the call may still come";
    case Kind::idle:
      return "nothing to do if the job has no work at the moment";
    case Kind::wrong_communicator:
      return "check which group that call was meant for: it belongs on the smaller one, or all ranks must make it";
    case Kind::order_inversion:
      return "give all ranks one order in which they use these communicators, and wait for one before using the other";
    case Kind::p2p_size_mismatch:
      return "compare the sizes both ends pass: variable lengths must be exchanged first, and with two stages the "
             "messages of forward and backward pass must not cross";
    case Kind::group_mismatch:
      return "compare the lists of sends and receives both ends put between ncclGroupStart and ncclGroupEnd";
    case Kind::concurrent_use:
      return "let one thread at a time use a communicator, or give each thread its own";
    case Kind::teardown_order:
      return "destroy communicators in one order on all ranks, after all work on them has ended";
    case Kind::duplicate_device:
      return "set the device of each process before its first NCCL call, by its local rank";
    case Kind::not_started:
      return "see what was put on that stream before the call: a kernel that never ends, or work of another stream it "
             "waits for";
    case Kind::host_blocked:
      return "see what that stream or event was waiting for: the work on it is not NCCL's";
    case Kind::comm_error:
      return "read NCCL's own log of that rank (NCCL_DEBUG=WARN) at that time; the other ranks are victims";
    case Kind::environment_differs:
      return "start all ranks with the same libraries and the same NCCL_* variables";
    case Kind::group_size:
      return "check how the ranks were launched: each set made a world of its own";
    case Kind::duplicate_data:
      return "check that the sampler is told the rank and the size of the data-parallel group, and that its seed is "
             "common";
    case Kind::result_divergence:
      return "suspect that rank's device or memory, or a buffer that was read or written before the call had completed";
  }
  return "";
}

}  // namespace lockstep
