// SPDX-License-Identifier: MIT

#include "reference/train/run/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>

namespace train {
namespace {

constexpr const char* kFooter =
    "The global batch is micro-batch x accum x dp: give any two, or one, and the rest follows.\n"
    "Without a launcher the ranks are threads of this process. Launchers: mpirun, or any that sets RANK and "
    "WORLD_SIZE\n"
    "together with NCCL_COMM_ID=host:port, or with --id-file on a folder that the ranks share.\n\n"
    "examples: lockstep-train --dp 2 --zero 1 --steps 20\n"
    "          mpirun -n 4 lockstep-train --fsdp full --wrap layer --prefetch both\n";

template <class... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::ostringstream out;
  (out << ... << words);
  throw Refusal(out.str());
}

// Help says what a flag means; the range is told when it is missed.
template <class T>
CLI::Validator range(T low, T high) {
  CLI::Validator validator = CLI::Range(low, high);
  return validator.description("");
}

// Numbers, names and paths are read here and not by the parser, which takes "nan" for a number, "-1" for a seed and "0"
// for the first of several names, and tells what it refuses in words of its own.

struct Real {
  const char* must;  // be
  bool (*fits)(double);
};
constexpr Real kAtLeastZero{"a finite number of at least 0", [](double x) { return x >= 0; }};
constexpr Real kAboveZero{"a finite number above 0", [](double x) { return x > 0; }};
constexpr Real kBelowOne{"a number of at least 0 and below 1", [](double x) { return x >= 0 && x < 1; }};
constexpr Real kFraction{"a number above 0 and at most 1", [](double x) { return x > 0 && x <= 1; }};
constexpr Real kMebibytes{"a number above 0 and at most 1e6", [](double x) { return x > 0 && x <= 1e6; }};
constexpr Real kMicroseconds{"a number from 0 to 1e9", [](double x) { return x >= 0 && x <= 1e9; }};
constexpr Real kFactor{"a number from 0 to 1e6", [](double x) { return x >= 0 && x <= 1e6; }};

double read_real(const char* flag, const std::string& word, const Real& kind) {
  char* stop = nullptr;
  const double value = std::strtod(word.c_str(), &stop);
  if (word.empty() || *stop != '\0' || !std::isfinite(value) || !kind.fits(value))
    refuse(flag, " is ", word, ", but must be ", kind.must);
  return value;
}

CLI::Option* add_real(CLI::App& app, const char* flag, double& value, const char* text, const Real& kind) {
  const auto read = [flag, kind, &value](const std::string& word) { value = read_real(flag, word, kind); };
  return app.add_option_function<std::string>(flag, read, text)->type_name("FLOAT");
}

template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

template <class T>
std::string names_of(const Choices<T>& choices) {
  std::string names;
  for (size_t i = 0; i < choices.size(); ++i)
    names += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i].first;
  return names;
}

template <class T>
CLI::Option* add_choice(CLI::App& app, const char* flag, T& value, const char* text, const Choices<T>& choices) {
  const auto read = [flag, choices, &value](const std::string& word) {
    for (const auto& choice : choices)
      if (choice.first == word) return static_cast<void>(value = choice.second);
    refuse(flag, " is ", word, ", but must be ", names_of(choices));
  };
  return app.add_option_function<std::string>(flag, read, text);
}

CLI::Option* add_choice(CLI::App& app, const char* flag, std::string& value, const char* text,
                        std::initializer_list<const char*> names) {
  Choices<std::string> choices;
  for (const char* name : names) choices.emplace_back(name, name);
  return add_choice<std::string>(app, flag, value, text, choices);
}

// `what`: "file" or "folder".
CLI::Option* add_path(CLI::App& app, const char* flag, std::string& value, const char* text, const char* what) {
  const auto read = [flag, what, &value](const std::string& word) {
    if (word.empty()) refuse(flag, " names no ", what);
    value = word;
  };
  return app.add_option_function<std::string>(flag, read, text);
}

CLI::Option* add_seed(CLI::App& app, const char* flag, uint64_t& value, const char* text) {
  const auto read = [flag, &value](const std::string& word) {
    const char* end = word.data() + word.size();
    if (const auto [stop, error] = std::from_chars(word.data(), end, value); error != std::errc{} || stop != end)
      refuse(flag, " is ", word, ", but must be a whole number from 0 to ", UINT64_MAX);
  };
  return app.add_option_function<std::string>(flag, read, text)->type_name("UINT");
}

void add_layout(CLI::App& app, Options& o) {
  const char* group = "Layout";
  app.add_option("--ranks", o.ranks, "ranks, as threads of this process (the product of the layout)")
      ->check(range(1, 1024))
      ->group(group);
  add_path(app, "--id-file", o.id_file, "ranks as processes meet in this file, made by rank 0", "file")->group(group);
  app.add_option("--threads", o.threads, "threads of the kernels, shared by the ranks of a process (1)")
      ->check(range(1, 256))
      ->group(group);
  const auto degree = [&](const char* name, int& value, const char* text) {
    return app.add_option(name, value, text)->check(range(1, 1024))->group(group);
  };
  degree("--dp", o.shape.dp, "data-parallel ranks (what the others leave of the ranks)");
  degree("--tp", o.shape.tp, "tensor-parallel ranks (1)");
  degree("--pp", o.shape.pp, "pipeline stages (1)");
  degree("--cp", o.shape.cp, "context-parallel ranks (1)");
  degree("--ep", o.shape.ep, "expert-parallel ranks, carved out of dp x cp x tp (1)");
  app.add_option("--order", o.shape.order, "axes of the grid from fastest to slowest (tp-cp-dp-pp)")->group(group);
  app.add_flag("--sp", o.sequence_parallel, "sequence parallelism beside tensor parallelism")->group(group);
  app.add_option_function<int>(
         "--zero", [&o](const int& stage) { o.shard = static_cast<Shard>(stage); }, "ZeRO stage over dp: 0, 1, 2 or 3")
      ->check(range(0, 3))
      ->group(group);
  add_choice<Shard>(app, "--fsdp", o.shard, "FSDP over dp: full, grad-op or hybrid",
                    {{"full", Shard::full}, {"grad-op", Shard::grad_op}, {"hybrid", Shard::hybrid}})
      ->excludes("--zero")
      ->group(group);
  app.add_option("--hybrid-shard", o.hybrid_shard, "ranks that share a parameter under --fsdp hybrid (half of dp)")
      ->check(range(1, 1024))
      ->group(group);
  app.add_option("--wrap", o.wrap, "units of FSDP: block, layer, size:N (parameters) or none (block)")->group(group);
  add_choice(app, "--prefetch", o.prefetch, "gathers ahead of use: none, backward, forward or both (backward)",
             {"none", "backward", "forward", "both"})
      ->group(group);
  add_choice(app, "--schedule", o.schedule, "gpipe, 1f1b, interleaved, zero-bubble or zero-bubble-2 (1f1b)",
             {"gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-2"})
      ->group(group);
  app.add_option("--virtual-stages", o.virtual_stages, "chunks of the model on a pipeline stage (1)")
      ->check(range(1, 64))
      ->group(group);
  add_choice(app, "--cp-algo", o.cp_algo, "ring, allgather or ulysses (ring)", {"ring", "allgather", "ulysses"})
      ->group(group);
  add_real(app, "--bucket-mb", o.bucket_mb, "gradients reduced together, MiB; the first bucket at most 1 (25)",
           kMebibytes)
      ->group(group);
  app.add_flag("!--no-overlap", o.overlap, "reduce after the backward pass, not during it")->group(group);
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
    return app.add_option(name, value, text)->check(range(1, 1 << 20))->group(group);
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
  add_seed(app, "--seed", o.seed, "of parameters, dropout and the order of samples (1)")->group(group);
}

void add_training(CLI::App& app, Options& o) {
  const char* group = "Training";
  const auto number = [&](const char* name, double& value, const char* text, const Real& kind = kAtLeastZero) {
    return add_real(app, name, value, text, kind)->group(group);
  };
  const auto count = [&](const char* name, int64_t& value, const char* text) {
    return app.add_option(name, value, text)->check(range(1, 1 << 30))->group(group);
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
  number("--loss-scale", o.loss_scale, "factor on the gradients of the backward pass, halved when they overflow (1)",
         kAboveZero);
}

void add_data(CLI::App& app, Options& o) {
  const char* group = "Data and output";
  add_path(app, "--data", o.data, "a text file (a bundled one)", "file")->group(group);
  app.add_flag("--packed", o.packed, "documents end at blank lines and do not see each other")->group(group);
  add_real(app, "--mask-fraction", o.mask_fraction, "of the tokens have no label (0)", kBelowOne)->group(group);
  app.add_option("--eval-every", o.eval_every, "steps between evaluations on the end of the text (none)")
      ->check(range(1, 1 << 30))
      ->group(group);
  app.add_option("--eval-batches", o.eval_batches, "global batches of an evaluation (4)")
      ->check(range(1, 1 << 20))
      ->group(group);
  add_path(app, "--dump", o.dump, "write gradients, parameters and optimizer state of every step to this new folder",
           "folder")
      ->group(group);
  app.add_option("--dump-every", o.dump_every, "steps between dumps (1)")->check(range(1, 1 << 30))->group(group);
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

// Flags with a value, but those that may be repeated, which take any number of values. The parser would take the next
// word for the value that is missing after a "=".
void check_once(const CLI::App& app, int argc, char** argv) {
  std::set<std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    if (flag.rfind("--", 0) != 0) continue;
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option != nullptr && word == flag + '=') refuse(word, " has no value");
    if (option == nullptr || option->get_items_expected_min() == 0 ||
        option->get_items_expected_max() >= CLI::detail::expected_max_vector_size)
      continue;
    if (!given.insert(flag).second) refuse(flag, " is given twice");
  }
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
      wrap.size() < 20)
    return;
  refuse("--wrap is \"", wrap, "\"; expected block, layer, none, or size:N with N parameters");
}

void complete_shape(Shape& shape, int world) {
  const int others = shape.pp * shape.cp * shape.tp;
  if (shape.dp == 0) {
    if (world % others != 0)
      refuse("ranks % (pp x cp x tp) = ", world, " % (", shape.pp, " x ", shape.cp, " x ", shape.tp,
             ") is not 0: no number of data-parallel ranks fits");
    shape.dp = world / others;
  }
  if (shape.world() != world)
    refuse("dp x pp x cp x tp = ", shape.dp, " x ", shape.pp, " x ", shape.cp, " x ", shape.tp, " = ", shape.world(),
           ", but there are ", world, " ranks");
  if ((shape.dp * shape.cp * shape.tp) % shape.ep != 0)
    refuse("(dp x cp x tp) % ep = (", shape.dp, " x ", shape.cp, " x ", shape.tp, ") % ", shape.ep, " is not 0");
}

// global_batch = micro_batch * accum * dp, solved for what was not given.
void complete_batch(Options& o) {
  const int64_t dp = o.shape.dp;
  if (o.global_batch == 0) {
    if (o.micro_batch == 0) o.micro_batch = 8;
    if (o.accum == 0) o.accum = 1;
    o.global_batch = o.micro_batch * o.accum * dp;
  }
  if (o.micro_batch == 0 && o.accum == 0) o.accum = 1;
  int64_t& unknown = o.micro_batch == 0 ? o.micro_batch : o.accum;
  const int64_t known = (o.micro_batch == 0 ? o.accum : o.micro_batch) * dp;
  if (unknown == 0) {
    if (o.global_batch % known != 0)
      refuse("global batch = micro-batch x accum x dp: ", o.global_batch, " is not a multiple of ",
             &unknown == &o.accum ? "micro-batch x dp = " : "accum x dp = ", known);
    unknown = o.global_batch / known;
  }
  if (o.global_batch != o.micro_batch * o.accum * dp)
    refuse("global batch = micro-batch x accum x dp: ", o.global_batch, " is not ", o.micro_batch, " x ", o.accum,
           " x ", dp, " = ", o.micro_batch * o.accum * dp);
}

void check_model(Options& o) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  const Shape& s = o.shape;
  const auto multiple = [](const char* equation, int64_t a, int64_t b) {
    if (a % b != 0) refuse(equation, " = ", a, " % ", b, " is not 0");
  };
  multiple("width % heads", o.width, o.heads);
  multiple("heads % kv-heads", o.heads, o.kv_heads);
  if (o.positions == "rotary") multiple("(width / heads) % 2 (rotary positions turn pairs)", o.width / o.heads, 2);
  multiple("heads % tp", o.heads, s.tp);
  if (o.kv_heads % s.tp != 0) multiple("tp % kv-heads (or kv-heads % tp)", s.tp, o.kv_heads);
  multiple("(4 x width) % tp", 4 * o.width, s.tp);
  if (o.layers % (s.pp * o.virtual_stages) != 0)
    refuse("layers % (pp x virtual-stages) = ", o.layers, " % (", s.pp, " x ", o.virtual_stages, ") is not 0");
  if (s.cp > 1) {
    multiple("seq % (2 x cp) (zigzag chunks)", o.seq, 2 * s.cp);
    if (o.cp_algo == "ulysses")
      multiple("(kv-heads / tp) % cp (ulysses splits heads)", std::max(o.kv_heads / s.tp, 1), s.cp);
  }
  if (o.sequence_parallel) {
    if (s.tp == 1) refuse("--sp splits rows over tensor-parallel ranks, and tp = 1: give --tp");
    multiple("(micro-batch x seq / cp) % tp (--sp)", o.micro_batch * o.seq / s.cp, s.tp);
  }
  if (s.ep > 1) {
    if (o.experts == 0) refuse("ep = ", s.ep, ", but the model has no experts: give --experts");
    multiple("experts % ep", o.experts, s.ep);
  }
  if (o.experts > 0 && s.tp > 1 && !o.sequence_parallel)
    refuse("experts with tp = ", s.tp, " need --sp: each tensor-parallel rank must have tokens of its own");
  if (o.experts > 0 && o.top_k > o.experts) refuse("top-k = ", o.top_k, " is more than experts = ", o.experts);
  if (o.share_layers) multiple("layers % 2 (--share-layers uses each layer twice)", o.layers, 2);
  if (o.share_layers && s.pp > 1) refuse("--share-layers needs pp = 1: a layer used twice would be on two stages");
}

void check_pipeline(const Options& o) {
  if (o.virtual_stages > 1 && o.shape.pp == 1)
    refuse("virtual-stages = ", o.virtual_stages, " needs several stages, and pp = 1: give --pp");
  if (o.schedule.rfind("zero-bubble", 0) == 0 && o.shape.pp == 1)
    refuse("--schedule ", o.schedule, " fills the bubble of a pipeline, and pp = 1 has none: give --pp");
  const bool interleaved = o.schedule == "interleaved";
  if (o.virtual_stages > 1 && !interleaved)
    refuse("virtual-stages = ", o.virtual_stages, " needs --schedule interleaved, not ", o.schedule);
  if (interleaved && o.accum % o.shape.pp != 0)
    refuse("accum % pp = ", o.accum, " % ", o.shape.pp, " is not 0 (interleaved schedule)");
}

void check_sharding(Options& o) {
  if (o.shard == Shard::hybrid && o.shape.ep > 1)
    refuse("--fsdp hybrid divides dp x cp, over which experts with ep = ", o.shape.ep, " are not summed: take another");
  if (o.shard == Shard::hybrid) {
    if (o.hybrid_shard == 0) o.hybrid_shard = o.shape.dp % 2 == 0 ? o.shape.dp / 2 : o.shape.dp;
    const int ranks = o.shape.dp * o.shape.cp;
    if (ranks % o.hybrid_shard != 0)
      refuse("(dp x cp) % hybrid-shard = (", o.shape.dp, " x ", o.shape.cp, ") % ", o.hybrid_shard, " is not 0");
  } else if (o.hybrid_shard != 0) {
    refuse("--hybrid-shard goes with --fsdp hybrid");
  }
  if (o.compress != Compress::none && o.shard != Shard::none)
    refuse("--compress acts on the all-reduce of plain data parallelism: leave out --zero and --fsdp");
  if (o.dtype == Dtype::f64 && o.compress == Compress::bf16)
    refuse("--compress bf16 would round fp64 gradients to 8 bits: take --dtype fp32 or bf16");
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  options.shape.dp = 0;
  CLI::App app("Trains a small GPT on a text, in every parallel mode, on one machine or many.", "lockstep-train");
  app.set_help_flag("--help", "print this and end");
  app.footer(kFooter);
  add_layout(app, options);
  add_model(app, options);
  add_training(app, options);
  add_data(app, options);
  try {
    check_once(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    refuse(error.what(), "; see --help");
  }
  check_order(options.shape.order);
  check_wrap(options.wrap);
  return options;
}

void complete_options(Options& options, int world) {
  complete_shape(options.shape, world);
  complete_batch(options);
  check_model(options);
  check_pipeline(options);
  check_sharding(options);
}

}  // namespace train
