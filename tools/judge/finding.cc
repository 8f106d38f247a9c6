// SPDX-License-Identifier: MIT
#include "tools/judge/finding.h"

#include <iterator>

namespace lockstep {

namespace {

// In the order of the enumeration.
constexpr const char* kKindNames[] = {
    "missing-call",
    "left-early",
    "died",
    "op-mismatch",
    "count-mismatch",
    "dtype-mismatch",
    "redop-mismatch",
    "root-mismatch",
    "wrong-communicator",
    "order-inversion",
    "cross-communicator-cycle",
    "p2p-cycle",
    "p2p-unmatched",
    "p2p-size-mismatch",
    "group-mismatch",
    "concurrent-use",
    "init-incomplete",
    "teardown-order",
    "duplicate-device",
    "stalled-together",
    "not-started",
    "host-blocked",
    "comm-error",
    "environment-differs",
    "group-size",
    "duplicate-data",
    "missing-trace",
    "straggler",
    "idle",
    "result-divergence",
};
constexpr size_t kKinds = std::size(kKindNames);
static_assert(kKinds == static_cast<size_t>(Kind::result_divergence) + 1);

}  // namespace

const char* kind_name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::vector<std::string> kind_names() { return {kKindNames, kKindNames + kKinds}; }

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
