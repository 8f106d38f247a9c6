// SPDX-License-Identifier: MIT

#include "tests/train/run/formulas.h"

#include <gtest/gtest.h>

#include "reference/train/model/parameters.h"
#include "reference/train/parallel/pieces.h"

namespace train::test {
namespace {

constexpr const char *kFloat = "float32", *kDouble = "float64";

// What follows from a place in the grid. L layers of this rank, b s tokens of a micro-batch here, C width, e 4 bytes.
struct Here {
  const Work& work;
  const Shape& shape = work.shape;
  Place place;
  bool first, last;  // stage
  std::vector<int> modules;
  int64_t layers, tokens, width = work.config.width, m = work.accum;

  Here(const Work& w, int rank) : work(w), place(Mesh(w.shape).place(rank)) {
    first = place.pp == 0;
    last = place.pp == shape.pp - 1;
    layers = w.config.layers / shape.pp;
    tokens = w.sequences * w.config.seq / shape.cp;
    for (const auto& chunk : modules_of_stage(static_cast<int>(w.config.layers), place.pp, shape.pp, w.chunks))
      modules.insert(modules.end(), chunk.begin(), chunk.end());
  }
  int64_t activations() const { return tokens * width; }
  bool experts() const { return work.config.experts > 0; }
  std::string data_name() const { return shape.cp > 1 ? "dp-cp" : "dp"; }
  int data_size() const { return shape.dp * shape.cp; }

  bool holds(const Parameter& p) const {
    if (p.name == "transformer.wte.weight") return first || last;  // tied
    if (p.name == "transformer.wpe.weight") return first;
    if (p.name.find(".h.") == std::string::npos) return last;
    const int layer = std::stoi(p.name.substr(p.name.find(".h.") + 3));
    return std::count(modules.begin(), modules.end(), 1 + 2 * layer) > 0;
  }
  // Elements on this rank of the parameters that `which` picks; how many of them in `count`.
  template <class Which>
  int64_t parameters(const Which& which, int64_t* count = nullptr) const {
    Groups groups;
    groups.tp = Comm(nullptr, place.tp, shape.tp, "", {});
    groups.ep = Comm(nullptr, place.ep, shape.ep, "", {});
    groups.sequence = work.sequence;
    const Parameters all(work.config, groups);
    int64_t elements = 0;
    for (const auto& p : all.all())
      if (holds(*p) && which(*p)) {
        elements += p->count;
        if (count != nullptr) ++*count;
      }
    return elements;
  }
};

// 1909.08053, section 3; with --sp 2205.05198, section 4.2.2. A layer has two regions, with experts one; the embedding
// ends one, the head begins one.
void add_tensor(const Here& h, Calls& calls) {
  const int t = h.shape.tp;
  if (t == 1) return;
  const int64_t regions = (h.experts() ? 1 : 2) * h.layers, entered = regions + (h.last ? 1 : 0),
                left = regions + (h.first ? 1 : 0);
  if (!h.work.sequence) {
    calls[{"tp", "AllReduce", kFloat}].add(h.m * (left + entered), h.activations());  // forward, backward
  } else {
    // f gathers forward and again backward, g's backward gathers; g scatters forward, f backward.
    calls[{"tp", "AllGather", kFloat}].add(h.m * (2 * entered + left), h.activations() / t);
    calls[{"tp", "ReduceScatter", kFloat}].add(h.m * (left + entered), h.activations() / t);
    // What sees a t-th of the rows is summed once a step.
    const auto partial = [](const Parameter& p) {
      const auto has = [&](const char* word) { return p.name.find(word) != std::string::npos; };
      return has(".ln_") || has("wpe") || has("router") || (has("c_proj.bias") && !has(".experts."));
    };
    int64_t count = 0;
    Total& total = calls[{"tp", "AllReduce", kFloat}];
    total.elements += h.parameters(partial, &count);
    total.calls += count;
  }
  // Ranks that share key/value heads sum their rows of c_attn's weight and bias once a step.
  if (const int64_t keys = h.work.config.key_value_heads(); keys < t) {
    const int64_t rows = 2 * h.work.config.head_width();
    calls[{"kv", "AllReduce", kFloat}].add(h.layers, rows * h.width);
    calls[{"kv", "AllReduce", kFloat}].add(h.layers, rows);
  }
  // Cross entropy: largest logit, target's logit, sum of exponentials.
  if (h.last) calls[{"tp", "AllReduce", kFloat}].add(h.m * 3, h.tokens);
}

// An all-to-all of n ranks: a rank keeps one n-th of its buffer.
void add_all_to_all(Calls& calls, const std::string& comm, int64_t times, int64_t each, int n) {
  for (const char* away : {"Send", "Recv"}) calls[{comm, away, kFloat}].add(times * (n - 1), each);
  for (const char* here : {"Send to itself", "Recv from itself"}) calls[{comm, here, kFloat}].add(times, each);
}

// What a rank has of queries, or of keys or values: split over tp by heads, or shared.
void add_context(const Here& h, Calls& calls) {
  const int c = h.shape.cp;
  if (c == 1) return;
  const Config& config = h.work.config;
  const int64_t queries = h.activations() / h.shape.tp, times = h.m * h.layers,
                keys = h.tokens * std::max<int64_t>(config.key_value_heads() / h.shape.tp, 1) * config.head_width(),
                pair = 2 * keys;
  if (h.work.context == "ring") {  // c - 1 forward, c - 1 and c backward
    for (const char* function : {"Send", "Recv"}) calls[{"cp", function, kFloat}].add(times * (3 * c - 2), pair);
  } else if (h.work.context == "allgather") {
    calls[{"cp", "AllGather", kFloat}].add(times * 2, pair);
    calls[{"cp", "ReduceScatter", kFloat}].add(times, pair);
  } else {
    add_all_to_all(calls, "cp", times * 4, queries / c, c);
    add_all_to_all(calls, "cp", times * 4, keys / c, c);
  }
}

// Every piece but the last hands activations on, every one but the first gradients back.
void add_pipeline(const Here& h, Calls& calls) {
  const int p = h.shape.pp;
  if (p == 1) return;
  const int64_t message = h.activations() / (h.work.sequence ? h.shape.tp : 1);
  const int64_t from_before = h.m * (h.work.chunks - (h.first ? 1 : 0)),
                to_next = h.m * (h.work.chunks - (h.last ? 1 : 0));
  const auto add = [&](const char* comm, const char* function, int64_t times) {
    if (times > 0) calls[{comm, function, kFloat}].add(times, message);
  };
  add("pp-activations", "Recv", from_before);
  add("pp-activations", "Send", to_next);
  add("pp-gradients", "Recv", to_next);
  add("pp-gradients", "Send", from_before);
  calls[{"pp", "AllReduce", kDouble}].add(1, 1);  // the loss
  if (h.first || h.last)
    calls[{"ends", "AllReduce", kFloat}].add(
        1, h.parameters([](const Parameter& q) { return q.name == "transformer.wte.weight"; }));
}

// All tokens go to all experts. Choices are gathered where a sequence is split; then come counts, and rows four times.
void add_experts(const Here& h, Calls& calls) {
  if (!h.experts()) return;
  const int64_t outer = h.tokens / (h.work.sequence ? h.shape.tp : 1), k = h.work.config.top_k,
                experts = h.work.config.experts, times = h.m * h.layers;
  if (h.shape.tp > 1) calls[{"tp", "AllGather", kFloat}].add(times, outer * k);
  if (h.shape.cp > 1) calls[{"cp", "AllGather", kFloat}].add(times, h.tokens * k);
  const int ep = h.shape.ep;
  if (ep == 1) return;
  add_all_to_all(calls, "ep", times, experts / ep, ep);
  add_all_to_all(calls, "ep", times * 4 * experts / ep, outer * h.width, ep);
}

int64_t padded(int64_t count, int64_t ranks) { return (count + ranks - 1) / ranks * ranks; }

void add_sum(const Here& h, Calls& calls, const std::string& comm, int ranks, int64_t count) {
  if (ranks == 1 || count == 0) return;
  if (h.work.zero == 0) return calls[{comm, "AllReduce", kFloat}].add(1, count);
  for (const char* function : {"ReduceScatter", "AllGather"})
    calls[{comm, function, kFloat}].add(1, padded(count, ranks) / ranks);
}

// One bucket each for what is summed over dp x cp and for experts; losses and tokens; the norm's pairs of doubles.
void add_data(const Here& h, Calls& calls) {
  const bool apart = h.shape.ep > 1;
  add_sum(h, calls, h.data_name(), h.data_size(),
          h.parameters([&](const Parameter& p) { return !apart || !p.expert; }));
  if (apart)
    add_sum(h, calls, "edp", h.data_size() * h.shape.tp / h.shape.ep,
            h.parameters([](const Parameter& p) { return p.expert; }));
  if (h.data_size() > 1) calls[{h.data_name(), "AllReduce", kDouble}].add(1, 2);
  if (apart) return calls[{"world", "AllGather", kDouble}].add(1, 2);
  const int owners = h.work.zero > 0 ? h.data_size() : 1;
  if (owners > 1) calls[{h.data_name(), "AllGather", kDouble}].add(1, 2);
  if (h.shape.tp * h.shape.pp > 1) calls[{"model", "AllGather", kDouble}].add(1, 2 * owners);
}

}  // namespace

Words Work::words() const {
  Words words;
  const auto add = [&](const char* flag, const auto& value) {
    words.emplace_back(flag);
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
      words.push_back(std::to_string(value));
    else
      words.push_back(value);
  };
  add("--layers", config.layers);
  add("--heads", config.heads);
  add("--kv-heads", config.key_value_heads());
  add("--width", config.width);
  add("--seq", config.seq);
  add("--micro-batch", sequences);
  add("--accum", accum);
  add("--dp", shape.dp);
  add("--pp", shape.pp);
  add("--cp", shape.cp);
  add("--tp", shape.tp);
  add("--ep", shape.ep);
  if (config.experts > 0) {
    add("--experts", config.experts);
    add("--top-k", config.top_k);
  }
  if (sequence) words.emplace_back("--sp");
  if (shape.cp > 1) add("--cp-algo", context);
  if (shape.pp > 1) add("--schedule", schedule);
  if (chunks > 1) add("--virtual-stages", chunks);
  add("--zero", zero);
  return words;
}

std::string Work::text() const {
  std::string text;
  for (const std::string& word : words()) text += word + ' ';
  return text;
}

Calls formula(const Work& work, int rank) {
  const Here here(work, rank);
  Calls calls;
  add_tensor(here, calls);
  add_context(here, calls);
  add_pipeline(here, calls);
  add_experts(here, calls);
  add_data(here, calls);
  return calls;
}

void expect_calls(const Work& work) {
  SCOPED_TRACE(work.text());
  const std::vector<Calls> ranks = calls_of_ranks(work.words());
  ASSERT_EQ(static_cast<int>(ranks.size()), work.shape.world());
  for (int rank = 0; rank < work.shape.world(); ++rank)
    EXPECT_EQ(ranks[static_cast<size_t>(rank)], formula(work, rank)) << "rank " << rank;
}

}  // namespace train::test
