// SPDX-License-Identifier: MIT
//
// See config.h.

#include "reference/nccl/config.h"

#include <algorithm>
#include <cstring>

#include "reference/nccl/log.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

constexpr int kUndefined = NCCL_CONFIG_UNDEF_INT;
constexpr int kMaxChannels = 64;

// The newest struct with what the caller's has; what his version does not know is undefined.
ncclConfig_t widened(const ncclConfig_t* config) {
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  size_t size = 0;
  std::memcpy(&size, config, sizeof size);
  std::memcpy(&own, config, std::min(size, sizeof own));
  const unsigned version = own.version;
  const auto since = [version](unsigned first, auto&... fields) {
    if (version < first) ((fields = kUndefined), ...);
  };
  since(NCCL_VERSION(2, 14, 0), own.blocking);
  since(NCCL_VERSION(2, 17, 0), own.cgaClusterSize, own.minCTAs, own.maxCTAs, own.splitShare);
  since(NCCL_VERSION(2, 25, 0), own.trafficClass);
  since(NCCL_VERSION(2, 27, 0), own.collnetEnable, own.CTAPolicy, own.shrinkShare, own.nvlsCTAs);
  since(NCCL_VERSION(2, 28, 0), own.nChannelsPerNetPeer, own.nvlinkCentricSched);
  if (version < NCCL_VERSION(2, 17, 0)) own.netName = nullptr;
  if (version < NCCL_VERSION(2, 27, 0)) own.commName = nullptr;
  return own;
}

ncclResult_t check(const ncclConfig_t& c) {
  const auto flag = [](int x) { return x == kUndefined || x == 0 || x == 1; };
  const auto refuse = [](const char* what, int value) {
    warn("Invalid config %s attribute value %d", what, value);
    return ncclInvalidArgument;
  };
  if (!flag(c.blocking)) return refuse("blocking", c.blocking);
  if (c.cgaClusterSize != kUndefined && c.cgaClusterSize < 0) return refuse("cgaClusterSize", c.cgaClusterSize);
  const bool min_set = c.minCTAs != kUndefined;
  const bool max_set = c.maxCTAs != kUndefined;
  if ((min_set && c.minCTAs <= 0) || (max_set && c.maxCTAs <= 0) || (min_set && max_set && c.minCTAs > c.maxCTAs)) {
    warn("Invalid config min/max channels attribute value %d/%d", c.minCTAs, c.maxCTAs);
    return ncclInvalidArgument;
  }
  if (!flag(c.splitShare)) return refuse("splitShare", c.splitShare);
  if (!flag(c.collnetEnable)) return refuse("collnetEnable", c.collnetEnable);
  if (c.CTAPolicy != kUndefined && (c.CTAPolicy < NCCL_CTA_POLICY_DEFAULT || c.CTAPolicy > NCCL_CTA_POLICY_ZERO))
    return refuse("policy", c.CTAPolicy);
  if (!flag(c.shrinkShare)) return refuse("shrinkShare", c.shrinkShare);
  if (c.nvlsCTAs != kUndefined && c.nvlsCTAs <= 0) return refuse("nvlsCTAs", c.nvlsCTAs);
  if (c.nChannelsPerNetPeer != kUndefined && (c.nChannelsPerNetPeer <= 0 || c.nChannelsPerNetPeer > kMaxChannels))
    return refuse("nChannelsPerNetPeer", c.nChannelsPerNetPeer);
  if (!flag(c.nvlinkCentricSched)) return refuse("nvlinkCentricSched", c.nvlinkCentricSched);
  return ncclSuccess;
}

}  // namespace

ncclResult_t read_config(const ncclConfig_t* config, const CommConfig& otherwise, CommConfig& out) {
  out = otherwise;
  if (config != nullptr) {
    const ncclConfig_t own = widened(config);
    if (own.magic != NCCL_API_MAGIC) {
      warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
      return ncclInvalidArgument;
    }
    if (const ncclResult_t result = check(own); result != ncclSuccess) return result;
    out = {};
    if (own.blocking != kUndefined) out.blocking = own.blocking != 0;
    if (own.splitShare != kUndefined) out.split_share = own.splitShare != 0;
    if (own.shrinkShare != kUndefined) out.shrink_share = own.shrinkShare != 0;
    if (own.commName != nullptr) out.name = own.commName;
  }
  const int blocking = int_setting("NCCL_COMM_BLOCKING", kUndefined);
  if (blocking == 0 || blocking == 1) out.blocking = blocking != 0;
  return ncclSuccess;
}

}  // namespace lockstep::nccl
