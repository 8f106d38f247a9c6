// SPDX-License-Identifier: MIT
//
// x + dropout(sum over a token's experts of gate * expert(norm(x))), an expert being gelu(. W1 + b1) W2 + b2: the MLP
// of a mixture of experts (parallel/expert.h).
//
// The router is kept from sending all tokens to few experts by a second loss (2101.03961, section 2.2), for each
// sequence: aux_loss * E * sum over experts of f * P, f the share of choices and P the mean probability. Times the
// sequence's length it joins the sum of losses, so that its weight does not depend on a layout; the loss that is told
// leaves it out.

#include "reference/train/kernels/experts.h"

#include "reference/train/model/blocks.h"
#include "reference/train/model/layers.h"
#include "reference/train/model/regions.h"
#include "reference/train/model/watch.h"
#include "reference/train/parallel/expert.h"

namespace train {
namespace {

class ExpertsBlock : public Module {
 public:
  ExpertsBlock(const Context& context, const Parameters& parameters, int64_t layer)
      : context_(context),
        layer_(layer),
        norm_(parameters, layer_parameter(context.config, layer, "ln_2")),
        router_(parameters, layer_parameter(context.config, layer, "mlp.router"), false) {
    name_ = "h." + std::to_string(layer) + ".mlp";
    norm_.list(parameters_);
    router_.list(parameters_);
    const int64_t local = context.config.experts / ep().size(), first = local * ep().rank();
    for (int64_t e = first; e < first + local; ++e) {
      const std::string name = layer_parameter(context.config, layer, "mlp.experts." + std::to_string(e));
      experts_.push_back({Linear(parameters, name + ".c_fc"), Linear(parameters, name + ".c_proj")});
      experts_.back().widen.list(parameters_);
      experts_.back().project.list(parameters_);
    }
  }

  View forward(int slot, const Batch& batch, View x, Arena& arena) override {
    Saved& s = saved_[slot];
    const int64_t tokens = x.size / width(), top_k = config().top_k;
    const Dtype type = wide(x.dtype);
    s.normed = norm_.forward(context_, s.norm, x, arena);
    show_rows(context_, batch, layer_, "ln_2", s.normed);
    const View logits = router_.forward(context_, s.normed, arena);
    show_rows(context_, batch, layer_, "mlp.router", logits);
    Arena& passing = passing_memory(arena);
    s.probabilities = arena.take(type, tokens * config().experts);
    s.gates = arena.take(type, tokens * top_k);
    s.choices = numbers(arena, tokens * top_k);
    route(context_.cuda(), s.probabilities, s.gates, s.choices, logits, tokens, config().experts, top_k);
    make_plan(s, batch, tokens, arena, passing);

    const View sent = passing.take(x.dtype, s.plan.total_sent() * width());
    pick_rows(context_.cuda(), sent, s.normed, s.rows, s.plan.total_sent(), width());
    s.arrived = arena.take(x.dtype, s.plan.total_arrived() * width());
    to_experts(s.plan, ep(), context_.stream, sent, s.arrived, width());
    const View results = run_experts(s, arena, passing);
    s.returned = arena.take(x.dtype, sent.size);
    from_experts(s.plan, ep(), context_.stream, results, s.returned, width());

    const View y = arena.take(x.dtype, x.size);
    combine(context_.cuda(), {y}, s.returned, s.gates, s.slots, tokens, top_k, width());
    return add_to_stream(context_, batch, RandomUse::mlp_dropout, layer_, x, y);
  }

  View backward_input(int slot, const Batch& batch, View output_grad, Arena& arena) override {
    Saved& s = saved_[slot];
    const int64_t tokens = output_grad.size / width(), top_k = config().top_k;
    const View y_grad = add_to_stream_backward(context_, batch, RandomUse::mlp_dropout, layer_, output_grad, arena);
    const View returned_grad = arena.take(s.returned.dtype, s.returned.size);
    const View gates_grad = arena.take(s.gates.dtype, s.gates.size);
    combine_backward(context_.cuda(), returned_grad, gates_grad, y_grad, s.returned, s.gates, s.slots, tokens, top_k,
                     width());
    s.results_grad = arena.take(s.arrived.dtype, s.arrived.size);
    to_experts(s.plan, ep(), context_.stream, returned_grad, s.results_grad, width());
    const View arrived_grad = run_experts_backward(s, arena);
    const View sent_grad = arena.take(s.returned.dtype, s.returned.size);
    from_experts(s.plan, ep(), context_.stream, arrived_grad, sent_grad, width());

    s.logits_grad = arena.take(s.normed.dtype, tokens * config().experts);
    const auto length = static_cast<double>(batch.length * context_.groups.cp.size());
    const double balance = config().aux_loss * context_.loss_scale * static_cast<double>(config().experts) /
                           (length * static_cast<double>(top_k));
    route_backward(context_.cuda(), s.logits_grad, gates_grad, s.probabilities, s.gates, s.choices, s.loads, balance,
                   tokens, config().experts, top_k, outer_rows(context_, batch).begin, batch.length);
    s.normed_grad = router_.backward_input(context_, s.logits_grad, arena);
    combine(context_.cuda(), {s.normed_grad, true}, sent_grad, {}, s.slots, tokens, top_k, width());
    return norm_.backward_beside(context_, s.norm, output_grad, s.normed_grad, arena);
  }

  void backward_weight(int slot, const Batch&) override {
    const Saved& s = saved_[slot];
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Part part = part_of(s, e);
      if (part.rows == 0) continue;  // no token, no gradient
      experts_[e].project.backward_weight(context_, part.of(s.results_grad, width()), part.of(s.active, hidden()));
      experts_[e].project.backward_bias(context_, part.of(s.results_grad, width()));
      experts_[e].widen.backward_weight(context_, part.of(s.hidden_grad, hidden()), part.of(s.arrived, width()));
      experts_[e].widen.backward_bias(context_, part.of(s.hidden_grad, hidden()));
    }
    router_.backward_weight(context_, s.logits_grad, s.normed);
    norm_.backward_weight(context_, s.norm, s.normed_grad);
  }

 private:
  struct Expert {
    Linear widen, project;
  };
  struct Saved {
    Norm::Saved norm;
    View normed, probabilities, gates;        // [tokens, C], [tokens, E], [tokens, top_k]
    int32_t *choices, *rows, *slots, *loads;  // the plan's on the device
    ExpertPlan plan;
    View arrived, hidden, active, returned;  // [arrived, C], [arrived, 4 C] twice, [sent, C]
    View results_grad, hidden_grad, logits_grad, normed_grad;
  };
  // The arrived rows of one expert.
  struct Part {
    int64_t begin, rows;
    View of(View view, int64_t columns) const { return view.part(begin * columns, rows * columns); }
  };

  const Config& config() const { return context_.config; }
  const Comm& ep() const { return context_.groups.ep; }
  int64_t width() const { return config().width; }
  int64_t hidden() const { return config().hidden(); }
  static int32_t* numbers(Arena& arena, int64_t count) {
    return static_cast<int32_t*>(arena.take_bytes(static_cast<size_t>(count) * sizeof(int32_t)));
  }
  static Part part_of(const Saved& s, size_t expert) {
    Part part{0, s.plan.arrived_at(static_cast<int64_t>(expert))};
    for (size_t e = 0; e < expert; ++e) part.begin += s.plan.arrived_at(static_cast<int64_t>(e));
    return part;
  }
  int32_t* upload(const std::vector<int32_t>& values, Arena& arena) const {
    int32_t* to = numbers(arena, static_cast<int64_t>(values.size()));
    if (!values.empty())
      check(
          cudaMemcpyAsync(to, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice, context_.cuda()),
          "cudaMemcpyAsync");
    return to;
  }

  // Every rank that has a part of these sequences learns all choices: capacity and balance go by whole sequences.
  void make_plan(Saved& s, const Batch& batch, int64_t tokens, Arena& arena, Arena& passing) {
    const Groups& groups = context_.groups;
    const int64_t all = batch.rows() * groups.cp.size(), top_k = config().top_k;
    View gathered{s.choices, tokens * top_k, Dtype::f32};  // integers that travel as fp32
    for (const Comm* comm : {&groups.tp, &groups.cp}) {
      if (comm->size() == 1) continue;
      const View more = passing.take(Dtype::f32, gathered.size * comm->size());
      comm->all_gather(gathered, more, context_.stream);
      gathered = more;
    }
    Choices choices;
    choices.experts.resize(static_cast<size_t>(all * top_k));
    choices.order.resize(static_cast<size_t>(all));
    choices.sequences = batch.sequences;
    choices.part = batch.length;
    choices.first = groups.cp.rank() * batch.rows() + outer_rows(context_, batch).begin;
    choices.count = tokens;
    const int32_t* order = groups.cp.size() > 1 ? batch.all_order : batch.order;
    check(cudaMemcpyAsync(choices.experts.data(), gathered.data, gathered.bytes(), cudaMemcpyDeviceToHost,
                          context_.cuda()),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(choices.order.data(), order, choices.order.size() * sizeof(int32_t), cudaMemcpyDeviceToHost,
                          context_.cuda()),
          "cudaMemcpyAsync");
    context_.stream.synchronize();
    s.plan = plan_experts(choices, config().experts, top_k, config().capacity, batch.length * groups.cp.size());
    exchange_counts(s.plan, ep(), context_.stream, passing);
    s.rows = upload(s.plan.rows, arena);
    s.slots = upload(s.plan.slots, arena);
    s.loads = upload(s.plan.loads, arena);
  }

  // What goes to experts and what comes from them is not needed again.
  Arena& passing_memory(Arena& arena) const {
    return context_.groups.exchange != nullptr ? context_.groups.exchange->empty_workspace() : arena;
  }

  View run_experts(Saved& s, Arena& arena, Arena& passing) {
    const int64_t rows = s.plan.total_arrived();
    s.hidden = arena.take(s.arrived.dtype, rows * hidden());
    s.active = arena.take(s.arrived.dtype, rows * hidden());
    const View results = passing.take(s.arrived.dtype, rows * width());
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Part part = part_of(s, e);
      if (part.rows == 0) continue;
      experts_[e].widen.forward_into(context_, part.of(s.hidden, hidden()), part.of(s.arrived, width()));
      gelu_forward(context_.cuda(), part.of(s.active, hidden()), part.of(s.hidden, hidden()));
      experts_[e].project.forward_into(context_, part.of(results, width()), part.of(s.active, hidden()));
    }
    return results;
  }

  View run_experts_backward(Saved& s, Arena& arena) {
    s.hidden_grad = arena.take(s.hidden.dtype, s.hidden.size);
    const View active_grad = arena.take(s.hidden.dtype, s.hidden.size);
    const View arrived_grad = arena.take(s.arrived.dtype, s.arrived.size);
    for (size_t e = 0; e < experts_.size(); ++e) {
      const Part part = part_of(s, e);
      if (part.rows == 0) continue;
      experts_[e].project.backward_input_into(context_, part.of(active_grad, hidden()),
                                              part.of(s.results_grad, width()));
      gelu_backward(context_.cuda(), part.of(s.hidden_grad, hidden()), part.of(active_grad, hidden()),
                    part.of(s.hidden, hidden()));
      experts_[e].widen.backward_input_into(context_, part.of(arrived_grad, width()), part.of(s.hidden_grad, hidden()));
    }
    return arrived_grad;
  }

  const Context& context_;
  int64_t layer_;
  Norm norm_;
  Linear router_;
  std::vector<Expert> experts_;
  Slots<Saved> saved_;
};

}  // namespace

std::unique_ptr<Module> make_experts(const Context& context, const Parameters& parameters, int64_t layer) {
  return std::make_unique<ExpertsBlock>(context, parameters, layer);
}

}  // namespace train
