// SPDX-License-Identifier: MIT

#include "reference/train/parallel/expert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace train {

int64_t ExpertPlan::total_arrived() const { return std::accumulate(arrived.begin(), arrived.end(), int64_t{0}); }
int64_t ExpertPlan::arrived_at(int64_t expert) const {
  return std::accumulate(arrived.begin() + expert * ranks, arrived.begin() + (expert + 1) * ranks, int64_t{0});
}

namespace {

// Whether each choice is within its expert's capacity: first choices before second ones, early tokens before late ones.
std::vector<bool> within_capacity(const Choices& c, int64_t experts, int64_t top_k, int64_t most) {
  const auto tokens = static_cast<int64_t>(c.order.size());
  std::vector<int64_t> by_order(static_cast<size_t>(tokens));
  std::iota(by_order.begin(), by_order.end(), 0);
  std::stable_sort(by_order.begin(), by_order.end(), [&](int64_t a, int64_t b) {
    return c.order[static_cast<size_t>(a)] < c.order[static_cast<size_t>(b)];
  });
  std::vector<int64_t> taken(static_cast<size_t>(c.sequences * experts));
  std::vector<bool> within(c.experts.size());
  for (int64_t j = 0; j < top_k; ++j)
    for (const int64_t token : by_order) {
      const auto at = static_cast<size_t>(token * top_k + j);
      const int64_t sequence = token / c.part % c.sequences;
      within[at] = taken[static_cast<size_t>(sequence * experts + c.experts[at])]++ < most;
    }
  return within;
}

}  // namespace

ExpertPlan plan_experts(const Choices& c, int64_t experts, int64_t top_k, double capacity, int64_t length) {
  ExpertPlan plan;
  plan.experts = experts;
  plan.sent.resize(static_cast<size_t>(experts));
  plan.loads.resize(static_cast<size_t>(c.sequences * experts));
  for (size_t at = 0; at < c.experts.size(); ++at) {
    const int64_t sequence = static_cast<int64_t>(at) / top_k / c.part % c.sequences;
    ++plan.loads[static_cast<size_t>(sequence * experts + c.experts[at])];
  }
  const auto most =
      static_cast<int64_t>(std::ceil(capacity * static_cast<double>(top_k * length) / static_cast<double>(experts)));
  const std::vector<bool> within =
      capacity > 0 ? within_capacity(c, experts, top_k, most) : std::vector<bool>(c.experts.size(), true);
  plan.slots.assign(static_cast<size_t>(c.count * top_k), -1);
  for (int64_t expert = 0; expert < experts; ++expert)
    for (int64_t i = 0; i < c.count * top_k; ++i) {
      const auto at = static_cast<size_t>(c.first * top_k + i);
      if (c.experts[at] != expert || !within[at]) continue;
      plan.slots[static_cast<size_t>(i)] = static_cast<int32_t>(plan.rows.size());
      plan.rows.push_back(static_cast<int32_t>(i / top_k));
      ++plan.sent[static_cast<size_t>(expert)];
    }
  return plan;
}

void exchange_counts(ExpertPlan& plan, const Comm& ep, const Stream& stream, Arena& workspace) {
  plan.ranks = ep.size();
  plan.arrived = plan.sent;
  if (ep.size() == 1) return;
  // Integers travel as fp32: nobody computes with them on the way.
  const std::vector<int32_t> counts(plan.sent.begin(), plan.sent.end());
  std::vector<int32_t> theirs(counts.size());
  const View leaving = workspace.take(Dtype::f32, plan.experts), arriving = workspace.take(Dtype::f32, plan.experts);
  check(cudaMemcpyAsync(leaving.data, counts.data(), leaving.bytes(), cudaMemcpyHostToDevice, stream.get()), "copy");
  ep.all_to_all(leaving, arriving, stream);
  check(cudaMemcpyAsync(theirs.data(), arriving.data, arriving.bytes(), cudaMemcpyDeviceToHost, stream.get()), "copy");
  stream.synchronize();
  const int64_t local = plan.local();
  for (int64_t peer = 0; peer < plan.ranks; ++peer)  // [peer, expert] -> [expert, peer]
    for (int64_t expert = 0; expert < local; ++expert)
      plan.arrived[static_cast<size_t>(expert * plan.ranks + peer)] =
          theirs[static_cast<size_t>(peer * local + expert)];
}

namespace {

// All rows between this rank and its peers, in one group. Between two ranks they go expert by expert.
void exchange(const ExpertPlan& plan, const Comm& ep, const Stream& stream, View here, View there, int64_t width,
              bool back) {
  if (plan.ranks == 1) {
    if (here.size > 0)
      check(cudaMemcpyAsync(there.data, here.data, here.bytes(), cudaMemcpyDeviceToDevice, stream.get()), "copy");
    return;
  }
  const View sent = back ? there : here, arrived = back ? here : there;
  const Group group;
  int64_t at = 0;
  for (int64_t expert = 0; expert < plan.experts; ++expert) {
    const int64_t count = plan.sent[static_cast<size_t>(expert)] * width;
    const auto peer = static_cast<int>(expert / plan.local());
    const View rows = sent.part(at, count);
    at += count;
    if (count > 0) back ? ep.receive(rows, peer, stream) : ep.send(rows, peer, stream);
  }
  at = 0;
  for (size_t i = 0; i < plan.arrived.size(); ++i) {
    const int64_t count = plan.arrived[i] * width;
    const auto peer = static_cast<int>(static_cast<int64_t>(i) % plan.ranks);
    const View rows = arrived.part(at, count);
    at += count;
    if (count > 0) back ? ep.send(rows, peer, stream) : ep.receive(rows, peer, stream);
  }
}

}  // namespace

void to_experts(const ExpertPlan& plan, const Comm& ep, const Stream& stream, View sent, View arrived, int64_t width) {
  exchange(plan, ep, stream, sent, arrived, width, false);
}
void from_experts(const ExpertPlan& plan, const Comm& ep, const Stream& stream, View results, View returned,
                  int64_t width) {
  exchange(plan, ep, stream, results, returned, width, true);
}

}  // namespace train
