// SPDX-License-Identifier: MIT
//
// lockstep-demo: a small but real data-parallel training which hangs the way real ones do.
//
// A character model is trained on a text. The text is cut into shards, one a rank; ranks are processes; gradients are
// added up with ncclAllReduce. One shard is a batch short. The program is an ordinary CUDA and NCCL program: it uses
// their public interfaces only, compiles against the real headers as against ours, and knows of Lockstep nothing but
// the marks of lockstep.h. Started by a user it is the launcher; started by that launcher it is a rank.

#include "reference/demo/launcher.h"
#include "reference/demo/options.h"
#include "reference/demo/trainer.h"

int main(int argc, char** argv) {
  const demo::Options options = demo::parse_options(argc, argv);
  if (const auto place = demo::find_launcher()) return demo::train(options, *place);
  return demo::launch(options, argv);
}
