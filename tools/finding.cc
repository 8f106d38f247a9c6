// SPDX-License-Identifier: MIT
#include "tools/finding.h"

namespace lockstep {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::missing_call:
      return "missing-call";
    case Kind::left_early:
      return "left-early";
    case Kind::died:
      return "died";
    case Kind::op_mismatch:
      return "op-mismatch";
    case Kind::count_mismatch:
      return "count-mismatch";
    case Kind::dtype_mismatch:
      return "dtype-mismatch";
    case Kind::redop_mismatch:
      return "redop-mismatch";
    case Kind::root_mismatch:
      return "root-mismatch";
    case Kind::init_incomplete:
      return "init-incomplete";
    case Kind::cross_communicator_cycle:
      return "cross-communicator-cycle";
    case Kind::p2p_cycle:
      return "p2p-cycle";
    case Kind::p2p_unmatched:
      return "p2p-unmatched";
    case Kind::stalled_together:
      return "stalled-together";
    case Kind::missing_trace:
      return "missing-trace";
    case Kind::straggler:
      return "straggler";
    case Kind::idle:
      return "idle";
  }
  return "unknown";
}

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::error:
      return "error";
    case Severity::warning:
      return "warning";
    case Severity::note:
      return "note";
  }
  return "note";
}

const char* confidence_name(Confidence confidence) {
  switch (confidence) {
    case Confidence::certain:
      return "certain";
    case Confidence::likely:
      return "likely";
    case Confidence::possible:
      return "possible";
  }
  return "possible";
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::healthy:
      return "healthy";
    case Verdict::hung:
      return "hung";
    case Verdict::mismatch:
      return "mismatch";
    case Verdict::failed:
      return "failed";
    case Verdict::slow:
      return "slow";
    case Verdict::unknown:
      return "unknown";
  }
  return "unknown";
}

int exit_status_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::healthy:
    case Verdict::slow:
      return 0;
    case Verdict::hung:
    case Verdict::mismatch:
    case Verdict::failed:
      return 1;
    case Verdict::unknown:
      return 3;
  }
  return 3;
}

}  // namespace lockstep
