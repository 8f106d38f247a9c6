// SPDX-License-Identifier: MIT
//
// The command line of lockstep-train, and the layouts it refuses. What is legal is decided here, before a communicator
// exists: a job that cannot work should end with one sentence on rank 0's terminal, not with a hang on all of them.

#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "reference/train/core/mesh.h"
#include "reference/train/core/tensor.h"
#include "reference/train/run/refusal.h"

namespace train {

enum class Shard { none, zero1, zero2, zero3, full, grad_op, hybrid };  // over data-parallel ranks
enum class Compress { none, bf16, topk };

constexpr int kMostRanks = 1 << 14;

struct Options {
  // Where it runs.
  int ranks = 0;        // threads of this process; 0: as many as the layout has, unless a launcher says otherwise
  std::string id_file;  // ranks as processes meet here
  int threads = 1;      // of the kernels, for all ranks of a process together

  // The layout.
  Shape shape;  // dp is 0 until the number of ranks is known
  bool sequence_parallel = false;
  Shard shard = Shard::none;
  int hybrid_shard = 0;  // ranks a parameter is sharded over by --fsdp hybrid; 0: half of an even dp above 2, else all
  std::string wrap = "block";
  std::string prefetch = "backward";
  std::string schedule = "1f1b";
  int virtual_stages = 1;
  std::string cp_algo = "ring";
  double bucket_mb = 25;
  bool no_sync = false;  // gradients stay whole until the last micro-batch
  bool overlap = true;
  Compress compress = Compress::none;
  double topk_fraction = 0.01;

  // The batch: global_batch = micro_batch * accum * dp.
  int64_t micro_batch = 0, accum = 0, global_batch = 0;

  // The model.
  int layers = 4, heads = 4, kv_heads = 0;
  int64_t width = 128, vocab = 256, vocab_multiple = 1, seq = 128;
  std::string positions = "learned";
  bool untied = false, share_layers = false;
  int experts = 0, top_k = 2;
  double capacity = 0, aux_loss = 0.01;  // capacity factor; 0: no token is dropped
  double dropout = 0;
  std::vector<std::string> freeze;
  Dtype dtype = Dtype::f32;
  uint64_t seed = 1;

  // Training.
  int64_t steps = 100;
  std::string optimizer = "adamw";
  double lr = 1e-3, min_lr = 1e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, momentum = 0.9,
         clip = 1.0;
  int64_t warmup = 0, decay_steps = 0;  // cosine from the end of the warm-up to decay_steps; 0: constant
  double loss_scale = 1;
  int64_t loss_scale_growth = 2000;  // steps without overflow after which the scale doubles; 0: it never does

  // Data and what is told.
  std::string data;  // empty: the bundled text
  bool packed = false;
  double mask_fraction = 0;
  int64_t eval_every = 0, eval_batches = 4;
  std::string dump, save_init, init;
  std::vector<std::string> dump_act;  // patterns of activations' names
  int64_t dump_every = 1;
  bool quiet = false, memory = false, print_mesh = false, print_schedule = false;
  std::vector<double> fake_compute_us;  // F, B, W

  std::set<std::string> given;  // flags on the command line, as "--bucket-mb"
};

// Exits with status 0 after --help. Throws Refusal.
Options parse_options(int argc, char** argv);

// What follows from the number of ranks: dp, the batch, default sizes of groups. Throws Refusal with the equation that
// fails.
void complete_options(Options& options, int world);

}  // namespace train
