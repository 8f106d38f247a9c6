// SPDX-License-Identifier: MIT

#include "reference/train/run/options.h"

#include <algorithm>
#include <cstdlib>

#include "reference/train/run/flags.h"

namespace train {
namespace {

constexpr const char* kFooter =
    "The global batch is micro-batch x accum x dp: give any two, or one, and the rest follows.\n"
    "Without a launcher the ranks are threads of this process. Launchers: mpirun, or any that sets RANK and "
    "WORLD_SIZE\n"
    "together with NCCL_COMM_ID=host:port, or with --id-file on a folder that the ranks share.\n\n"
    "examples: lockstep-train --dp 2 --zero 1 --steps 20\n"
    "          mpirun -n 4 lockstep-train --fsdp full --wrap layer --prefetch both\n";

void add_layout(CLI::App& app, Options& o) {
  const char* group = "Layout";
  add_whole(app, "--ranks", o.ranks, "ranks, as threads of this process (the product of the layout)", 1, 1024)
      ->group(group);
  add_path(app, "--id-file", o.id_file, "ranks as processes meet in this file, made by rank 0", "file")->group(group);
  add_whole(app, "--threads", o.threads, "threads of the kernels, shared by the ranks of a process (1)", 1, 256)
      ->group(group);
  const auto degree = [&](const char* name, int& value, const char* text) {
    return add_whole(app, name, value, text, 1, 1024)->group(group);
  };
  degree("--dp", o.shape.dp, "data-parallel ranks (what the others leave of the ranks)");
  degree("--tp", o.shape.tp, "tensor-parallel ranks (1)");
  degree("--pp", o.shape.pp, "pipeline stages (1)");
  degree("--cp", o.shape.cp, "context-parallel ranks (1)");
  degree("--ep", o.shape.ep, "expert-parallel ranks, carved out of dp x cp x tp (1)");
  app.add_option("--order", o.shape.order, "axes of the grid from fastest to slowest (tp-cp-dp-pp)")->group(group);
  app.add_flag("--sp", o.sequence_parallel, "sequence parallelism beside tensor parallelism")->group(group);
  add_choice<Shard>(app, "--zero", o.shard, "ZeRO stage over dp: 0, 1, 2 or 3",
                    {{"0", Shard::none}, {"1", Shard::zero1}, {"2", Shard::zero2}, {"3", Shard::zero3}})
      ->type_name("INT")
      ->group(group);
  add_choice<Shard>(app, "--fsdp", o.shard, "FSDP over dp: full, grad-op or hybrid",
                    {{"full", Shard::full}, {"grad-op", Shard::grad_op}, {"hybrid", Shard::hybrid}})
      ->excludes("--zero")
      ->group(group);
  degree("--hybrid-shard", o.hybrid_shard,
         "ranks that share a parameter under --fsdp hybrid (half of an even dp above 2, else all)");
  app.add_option("--wrap", o.wrap, "units of FSDP: block, layer, size:N (parameters) or none (block)")->group(group);
  add_choice(app, "--prefetch", o.prefetch, "gathers ahead of use: none, backward, forward or both (backward)",
             {"none", "backward", "forward", "both"})
      ->group(group);
  add_choice(app, "--schedule", o.schedule, "gpipe, 1f1b, interleaved, zero-bubble or zero-bubble-2 (1f1b)",
             {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"})
      ->group(group);
  add_whole(app, "--virtual-stages", o.virtual_stages, "chunks of the model on a pipeline stage (1)", 1, 64)
      ->group(group);
  add_choice(app, "--cp-algo", o.cp_algo, "ring, allgather or ulysses (ring)", {"ring", "allgather", "ulysses"})
      ->group(group);
  add_real(app, "--bucket-mb", o.bucket_mb, "gradients reduced together, MiB; the first bucket at most 1 (25)",
           kMebibytes)
      ->group(group);
  app.add_flag("--no-sync", o.no_sync,
               "ZeRO 2, 3 and FSDP reduce in the last micro-batch only: whole gradients till then")
      ->group(group);
  app.add_flag_callback(
         "--no-overlap", [&o] { o.overlap = false; },
         "nothing that dp, cp, tp or ep ranks exchange runs beside computation")
      ->group(group);
  add_choice<Compress>(app, "--compress", o.compress,
                       "gradients on the way between data-parallel ranks: none, bf16 or topk",
                       {{"none", Compress::none}, {"bf16", Compress::bf16}, {"topk", Compress::topk}})
      ->group(group);
  add_real(app, "--topk-fraction", o.topk_fraction, "of a bucket's gradients, sent by --compress topk (0.01)",
           kFraction)
      ->group(group);
  const auto sleeps = [&o](const std::vector<std::string>& words) {
    for (const std::string& word : words)
      o.fake_compute_us.push_back(read_real("--fake-compute-us", word, kMicroseconds));
  };
  app.add_option_function<std::vector<std::string>>("--fake-compute-us", sleeps,
                                                    "F,B,W: a stage's passes sleep so many microseconds")
      ->type_name("FLOAT")
      ->delimiter(',')
      ->expected(3)
      ->group(group);
  app.add_flag("--print-mesh", o.print_mesh, "print the grid and its groups, and end")->group(group);
  app.add_flag("--print-schedule", o.print_schedule, "print the pipeline's timeline, and end")->group(group);
}

void add_model(CLI::App& app, Options& o) {
  const char* group = "Model";
  const auto size = [&](const char* name, auto& value, const char* text) {
    using Size = std::remove_reference_t<decltype(value)>;
    return add_whole<Size>(app, name, value, text, 1, 1 << 20)->group(group);
  };
  size("--layers", o.layers, "layers (4)");
  size("--heads", o.heads, "attention heads (4)");
  size("--kv-heads", o.kv_heads, "key and value heads (as many as heads)");
  size("--width", o.width, "width of the residual stream (128)");
  size("--vocab", o.vocab, "classes; tokens are bytes (256)");
  size("--vocab-multiple", o.vocab_multiple, "the vocabulary is padded to a multiple of this (1)");
  size("--seq", o.seq, "tokens of a sequence (128)");
  add_choice(app, "--pos", o.positions, "learned or rotary positions (learned)", {"learned", "rotary"})->group(group);
  app.add_flag("--untied", o.untied, "the head has weights of its own")->group(group);
  app.add_flag("--share-layers", o.share_layers, "every second layer uses the parameters of the one before it")
      ->group(group);
  size("--experts", o.experts, "experts of a mixture-of-experts MLP (none)");
  size("--top-k", o.top_k, "experts a token is sent to (2)");
  add_real(app, "--capacity", o.capacity, "capacity factor of an expert, per sequence; 0 drops no token (0)", kFactor)
      ->group(group);
  add_real(app, "--aux-loss", o.aux_loss, "weight of the experts' balance loss (0.01)", kAtLeastZero)->group(group);
  add_real(app, "--dropout", o.dropout, "probability (0)", kBelowOne)->group(group);
  app.add_option("--freeze", o.freeze,
                 "parameters whose name matches this shell pattern are not trained; may be repeated")
      ->group(group);
  add_choice<Dtype>(app, "--dtype", o.dtype, "fp64, fp32 or bf16 with fp32 master weights (fp32)",
                    {{"fp64", Dtype::f64}, {"fp32", Dtype::f32}, {"bf16", Dtype::bf16}})
      ->group(group);
  add_whole<uint64_t>(app, "--seed", o.seed, "of parameters, dropout and the order of samples (1)", 0, UINT64_MAX)
      ->group(group);
}

CLI::Option* add_count(CLI::App& app, const char* name, int64_t& value, const char* text, int64_t low = 1) {
  return add_whole<int64_t>(app, name, value, text, low, 1 << 30);
}

void add_training(CLI::App& app, Options& o) {
  const char* group = "Training";
  const auto number = [&](const char* name, double& value, const char* text, const Real& kind = kAtLeastZero) {
    return add_real(app, name, value, text, kind)->group(group);
  };
  const auto count = [&](const char* name, int64_t& value, const char* text) {
    return add_count(app, name, value, text)->group(group);
  };
  count("--steps", o.steps, "steps (100)");
  count("--micro-batch", o.micro_batch, "sequences in a micro-batch of a rank (8)");
  count("--accum", o.accum, "micro-batches of a rank in a step (1)");
  count("--global-batch", o.global_batch, "sequences in a step over all ranks");
  add_choice(app, "--optimizer", o.optimizer, "adamw or sgd (adamw)", {"adamw", "sgd"})->group(group);
  number("--lr", o.lr, "learning rate (0.001)");
  number("--min-lr", o.min_lr, "learning rate at the end of the cosine (0.0001)");
  count("--warmup", o.warmup, "steps in which the rate rises linearly (none)");
  count("--decay-steps", o.decay_steps, "step at which the cosine ends (constant rate)");
  number("--beta1", o.beta1, "(0.9)", kBelowOne);
  number("--beta2", o.beta2, "(0.95)", kBelowOne);
  number("--eps", o.eps, "(1e-8)");
  number("--weight-decay", o.weight_decay, "of matrices and embeddings (0.1)");
  number("--momentum", o.momentum, "of sgd (0.9)");
  number("--clip", o.clip, "largest norm of the whole gradient; 0: not clipped (1)");
  number("--loss-scale", o.loss_scale, "first factor on the backward pass, halved when gradients overflow (1: none)",
         kAboveZero);
  add_count(app, "--loss-scale-growth", o.loss_scale_growth,
            "steps without overflow after which the loss scale doubles; 0: it never does (2000)", 0)
      ->group(group);
}

void add_data(CLI::App& app, Options& o) {
  const char* group = "Data and output";
  add_path(app, "--data", o.data, "a text file (a bundled one)", "file")->group(group);
  app.add_flag("--packed", o.packed, "documents end at blank lines and do not see each other")->group(group);
  add_real(app, "--mask-fraction", o.mask_fraction, "of the tokens have no label (0)", kBelowOne)->group(group);
  add_count(app, "--eval-every", o.eval_every, "steps between evaluations on the end of the text (none)")->group(group);
  add_whole<int64_t>(app, "--eval-batches", o.eval_batches, "global batches of an evaluation (4)", 1, 1 << 20)
      ->group(group);
  add_path(app, "--dump", o.dump, "write gradients, parameters and optimizer state of every step to this new folder",
           "folder")
      ->group(group);
  add_count(app, "--dump-every", o.dump_every, "steps between dumps (1)")->group(group);
  app.add_option("--dump-act", o.dump_act,
                 "dump activations whose name matches this shell pattern, too, such as '*'; may be repeated")
      ->group(group);
  add_path(app, "--save-init", o.save_init, "write the initial parameters (safetensors, nanoGPT's names), and end",
           "file")
      ->group(group);
  add_path(app, "--init", o.init, "start from the parameters in this file", "file")->group(group);
  app.add_flag("--memory", o.memory, "print memory by purpose at the end")->group(group);
  app.add_flag("--quiet", o.quiet, "no line a step")->group(group);
}

// Before anything multiplies them.
void check_world(const Shape& s) {
  const int64_t world = int64_t{std::max(s.dp, 1)} * s.pp * s.cp * s.tp;
  if (world > kMostRanks)
    refuse("dp x pp x cp x tp = ", std::max(s.dp, 1), " x ", s.pp, " x ", s.cp, " x ", s.tp, " = ", world,
           " ranks, but there can be at most ", kMostRanks, ": take smaller degrees");
}

void check_order(const std::string& order) {
  std::vector<std::string> axes = CLI::detail::split(order, '-');
  std::sort(axes.begin(), axes.end());
  if (axes != std::vector<std::string>{"cp", "dp", "pp", "tp"})
    refuse("--order is \"", order, "\"; it names each of tp, cp, dp and pp once, as in tp-cp-dp-pp");
}

void check_wrap(const std::string& wrap) {
  if (wrap == "block" || wrap == "layer" || wrap == "none") return;
  if (wrap.rfind("size:", 0) == 0 && wrap.size() > 5 && wrap.find_first_not_of("0123456789", 5) == std::string::npos &&
      wrap.find_first_not_of('0', 5) != std::string::npos && wrap.size() < 20)
    return;
  refuse("--wrap is \"", wrap, "\"; expected block, layer, none, or size:N with N parameters, at least 1");
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  options.shape.dp = 0;
  CLI::App app("Trains a small GPT on a text, in every parallel mode, on one machine or many.", "lockstep-train");
  app.set_help_flag("-h,--help", "print this and end");
  app.footer(kFooter);
  add_layout(app, options);
  add_model(app, options);
  add_training(app, options);
  add_data(app, options);
  try {
    check_once(app, argc, argv);
    app.parse(argc, argv);
    for (const CLI::Option* option : app.parse_order()) options.given.insert(option->get_name());
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    refuse(error.what(), "; see --help");
  }
  check_world(options.shape);
  check_order(options.shape.order);
  check_wrap(options.wrap);
  return options;
}

}  // namespace train
