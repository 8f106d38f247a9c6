// SPDX-License-Identifier: MIT

#include "reference/train/run/notes.h"

#include <cstdlib>

#include "reference/train/parallel/schedule.h"

namespace train {
namespace {

class Notes {
 public:
  explicit Notes(const Options& options) : given_(options.given) {}

  // What holds a flag back; only a flag that was given is told of, and only once.
  void add(bool idle, const char* flag, const std::string& why) {
    if (idle && given_.erase(flag) > 0) all_.push_back(std::string(flag) + " has no effect: " + why);
  }
  void add(bool idle, std::initializer_list<const char*> flags, const std::string& why) {
    for (const char* flag : flags) add(idle, flag, why);
  }
  void say(std::string sentence) { all_.push_back(std::move(sentence)); }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::set<std::string> given_;
  std::vector<std::string> all_;
};

bool is_fsdp(Shard shard) { return shard == Shard::full || shard == Shard::grad_op || shard == Shard::hybrid; }

void on_sharding(Notes& notes, const Options& o) {
  const Shape& s = o.shape;
  const int summed = s.dp * s.cp, experts = s.ep > 1 ? s.dp * s.cp * s.tp / s.ep : 1;
  const bool units = is_fsdp(o.shard) || o.shard == Shard::zero3;
  if (o.shard != Shard::none)
    notes.add(summed == 1 && experts == 1, {"--zero", "--fsdp"}, "it shards over dp x cp ranks, and there is one");
  notes.add(summed == 1 && experts == 1, {"--bucket-mb", "--compress", "--topk-fraction", "--no-sync"},
            "gradients are summed over dp x cp ranks, and there is one");
  notes.add(summed == 1 && experts == 1 && s.tp == 1, "--no-overlap",
            "it is about what dp, cp, tp and ep ranks exchange, and each of these is 1");
  notes.add(o.compress != Compress::topk, "--topk-fraction", "it goes with --compress topk");
  notes.add(units, "--bucket-mb", "ZeRO-3 and FSDP reduce units, not buckets (--wrap)");
  notes.add(!is_fsdp(o.shard), "--wrap", "it makes units of FSDP: give --fsdp");
  notes.add(!units, "--prefetch", "only ZeRO-3 and FSDP gather parameters");
  notes.add(!o.overlap, "--prefetch", "with --no-overlap nothing is gathered ahead of its use");
  notes.add(o.accum == 1, "--no-sync", "a step has one micro-batch (--accum)");
  notes.add(o.shard == Shard::none || o.shard == Shard::zero1, "--no-sync",
            "plain data parallelism and ZeRO-1 reduce in the last micro-batch anyhow");
}

// It runs all the same.
void on_bubble(Notes& notes, const Options& o) {
  const int fill = micro_batches_to_fill(o.schedule, o.shape.pp);
  if (o.accum < fill)
    notes.say("--schedule " + o.schedule + " fills its bubble from accum = " + std::to_string(fill) +
              " micro-batches on (pp = " + std::to_string(o.shape.pp) + "), and accum = " + std::to_string(o.accum) +
              ": stages idle for longer than its formula says");
}

void on_layout(Notes& notes, const Options& o) {
  const Shape& s = o.shape;
  notes.add(s.pp == 1, "--schedule", "pp = 1 has nothing to schedule");
  on_bubble(notes, o);
  notes.add(s.cp == 1, "--cp-algo", "cp = 1 splits no sequence");
  const int axes = (s.dp > 1) + (s.pp > 1) + (s.cp > 1) + (s.tp > 1);
  notes.add(axes < 2, "--order", "fewer than two of tp, cp, dp and pp have several ranks");
}

void on_training(Notes& notes, const Options& o) {
  notes.add(o.experts == 0, {"--top-k", "--capacity", "--aux-loss"}, "the model has no experts (--experts)");
  notes.add(o.optimizer == "sgd", {"--beta1", "--beta2", "--eps"}, "it goes with --optimizer adamw");
  notes.add(o.optimizer == "adamw", "--momentum", "it goes with --optimizer sgd");
  notes.add(o.decay_steps == 0, "--min-lr", "the rate does not fall without --decay-steps");
  notes.add(o.loss_scale <= 1, "--loss-scale-growth", "a loss scale of 1 or less is constant (--loss-scale)");
  notes.add(o.eval_every == 0, "--eval-batches", "there is no evaluation without --eval-every");
  notes.add(o.eval_every > o.steps, "--eval-every", "it is more than --steps");
  notes.add(o.dump.empty(), "--dump-every", "nothing is dumped without --dump");
}

}  // namespace

std::vector<std::string> notes_on(const Options& options, const Launch& launch) {
  Notes notes(options);
  on_sharding(notes, options);
  on_layout(notes, options);
  on_training(notes, options);
  notes.add(launch.as == Launch::As::threads || launch.world == 1, "--id-file",
            "the ranks are threads of this process, which need not look for each other");
  notes.add(std::getenv("NCCL_COMM_ID") != nullptr, "--id-file", "NCCL_COMM_ID says where ranks meet");
  return notes.take();
}

}  // namespace train
