// SPDX-License-Identifier: MIT
//
// The ways between stages: for every pair of neighbours and direction a communicator of two ranks, and a stream for
// each end. NCCL runs the operations of one communicator one after another, whatever their streams: a receive that was
// posted early would hold up every send behind it. So no two directions share one.

#pragma once

#include "reference/train/core/comm.h"
#include "reference/train/core/device.h"

namespace train {

// One end. Of the two ranks the sender is 0.
struct Channel {
  Comm comm;
  Stream stream;
};

struct Channels {
  Channel activations_in, activations_out, gradients_in, gradients_out;
};

// All stages call this together. `ring`: the last stage sends activations to the first, too, for its next chunk.
// `token` is a number that may travel: one message each connects the channels, in an order that all stages share, for
// NCCL connects two ranks when both have come to their first message and blocks them until then.
void open_channels(Channels& channels, const Comm& pp, bool ring, View token);

}  // namespace train
