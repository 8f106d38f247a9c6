// SPDX-License-Identifier: MIT

#include "reference/train/parallel/pipeline_channels.h"

namespace train {
namespace {

// Edge e joins stages e and e + 1, the last one the ends. In one round no stage has two of them.
int round_of(int edge, int stages) { return edge == stages - 1 && stages % 2 == 1 ? 2 : edge % 2; }

// The channels of a round's edges, activations or gradients: a split of all stages, of which each gets its pair.
void open_round(Channels& channels, const Comm& pp, int edges, int round, bool forward, View token) {
  const int stages = pp.size(), before = (pp.rank() + stages - 1) % stages;
  int edge = -1;
  for (const int e : {before, pp.rank()})
    if (e < edges && round_of(e, stages) == round) edge = e;
  const bool lower = edge == pp.rank(), sends = lower == forward;
  const char* name = forward ? "pp-activations" : "pp-gradients";
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = name;
  ncclComm_t handle = nullptr;
  check(ncclCommSplit(pp.get(), edge < 0 ? NCCL_SPLIT_NOCOLOR : edge, sends ? 0 : 1, &handle, &config),
        "ncclCommSplit");
  if (edge < 0) return;
  Channel& channel = forward ? (sends ? channels.activations_out : channels.activations_in)
                             : (sends ? channels.gradients_out : channels.gradients_in);
  const int upper = (edge + 1) % stages;
  channel.comm =
      Comm(handle, sends ? 0 : 1, 2, name, forward ? std::vector<int>{edge, upper} : std::vector<int>{upper, edge});
  if (sends)
    channel.comm.send(token, 1, channel.stream);
  else
    channel.comm.receive(token, 0, channel.stream);
  channel.stream.synchronize();
}

}  // namespace

void open_channels(Channels& channels, const Comm& pp, bool ring, View token) {
  const int edges = pp.size() == 1 ? 0 : ring ? pp.size() : pp.size() - 1;
  for (int round = 0; round < 3; ++round) {
    bool any = false;
    for (int e = 0; e < edges; ++e) any |= round_of(e, pp.size()) == round;
    for (const bool forward : {true, false})
      if (any) open_round(channels, pp, edges, round, forward, token);
  }
}

}  // namespace train
