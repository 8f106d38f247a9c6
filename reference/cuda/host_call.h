// SPDX-License-Identifier: MIT
//
// A user's host function as an operation of a stream, and the thread it runs on.

#pragma once

#include <functional>
#include <memory>

#include "reference/cuda/stream.h"

namespace lockstep::host {

std::shared_ptr<HostQueue> start_host_queue();
void stop_host_queue(HostQueue& queue);  // its thread ends when the function it runs returns

std::unique_ptr<Op> make_host_call(Stream& stream, std::function<void()> function);

}  // namespace lockstep::host
