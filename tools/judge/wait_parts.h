// SPDX-License-Identifier: MIT
//
// The kinds of waits, each in a file of its own: rows (rule_waits.cc), the making of communicators, messages, and what
// holds ranks up although nobody is missing from it.

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "interpose/abi/functions.h"
#include "tools/judge/rules.h"

namespace lockstep {

inline bool is_fn(const trace::Call& call, abi::Fn fn) { return call.fn == static_cast<uint16_t>(fn); }

// The last moment at which the member could still be waiting: an abort by a watchdog ends the wait, not the evidence.
trace::Time last_moment(const Evidence& evidence, const Member& member);
// Has it left the communicator in good order, or ended so? Then it was not held up by it.
bool left_in_good_order(const Evidence& evidence, const Member& member);

// --- waits_making.cc ---
std::optional<Wait> init_wait(const Evidence& evidence, size_t index);
std::optional<Wait> split_wait(const Evidence& evidence, size_t index);

// --- waits_messages.cc ---
void p2p_waits(const Evidence& evidence, size_t index, std::vector<Wait>& waits);

// --- waits_stuck.cc ---
// Collectives that all have started and none completes. Where nothing else is known they are left to rule_quiet.cc.
void add_started_by_all(const Evidence& evidence, const std::vector<Finding>& mismatches, std::vector<Wait>& waits);
void add_stuck_behind(const Evidence& evidence, const std::vector<Finding>& mismatches, std::vector<Wait>& waits);

}  // namespace lockstep
