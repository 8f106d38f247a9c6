// SPDX-License-Identifier: MIT
//
// Stage 1 (section 5.1): optimizer states are sharded. With n ranks, P parameters, m micro-batches:
//
//   g_shard = reduce-scatter of g       once a step, in the last micro-batch       P e
//   update of the shard
//   p       = all-gather of p_shard     once a step                                P e
//
// which is what an all-reduce costs. Memory in fp32: (4 + 4) P + 8 P / n bytes.
//
// Stage 2 (section 5.2): gradients are sharded as well. A whole gradient never exists, so every micro-batch is reduced:
// m reduce-scatters and one all-gather of P e. Memory in fp32: 4 P + (4 + 8) P / n, and the slots for buckets under
// way. With `--no-sync` gradients stay whole until the last micro-batch: that is stage 1.
//
// Buckets are padded to a multiple of n elements; the padding travels too.

#include "reference/train/parallel/zero.h"

#include <algorithm>

#include "reference/train/parallel/buckets.h"
#include "reference/train/parallel/data.h"
#include "reference/train/parallel/sharded_gradients.h"

namespace train {
namespace {

// Work on another stream, after what the first one has so far and before what comes to it later.
class Detour {
 public:
  template <class Work>
  void follow(const Stream& from, const Stream& by, Work work) {
    from.record(left_);
    by.wait(left_);
    work(by);
    by.record(back_);
    from.wait(back_);
  }

 private:
  Event left_, back_;
};

class Zero1 : public Strategy {
 public:
  Zero1(const Setup& setup, double bucket_bytes) : setup_(setup), buckets_(setup_, bucket_bytes, setup_.group.size()) {
    make_frozen(setup_);
    for (int b = 0; b < buckets_.size(); ++b) {
      const View value = mine(b, buckets_.value(b));
      add_owned(owned_, buckets_.flat(b), setup_.group.rank(), value, mine(b, buckets_.gradient(b)),
                make_state(setup_, value));
    }
    buckets_.gradients().on_reduce([this](int b, View gradient) {
      setup_.group.reduce_scatter(gradient, mine(b, gradient), ncclSum, buckets_.communication());
    });
  }

  void begin_step(int) override { buckets_.gradients().begin_step(); }
  void after_backward(int module, int k) override { buckets_.gradients().after_backward(module, k); }
  void finish_gradients() override { buckets_.gradients().finish(); }

  void finish_update() override {
    update_.follow(setup_.compute, buckets_.communication(), [&](const Stream& stream) {
      for (int b = 0; b < buckets_.size(); ++b)
        setup_.group.all_gather(mine(b, buckets_.value(b)), buckets_.value(b), stream);
    });
  }

  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return setup_.group; }

 private:
  View mine(int bucket, View whole) const { return buckets_.flat(bucket).shard(whole, setup_.group.rank()); }

  const Setup setup_;
  Buckets buckets_;
  std::vector<Owned> owned_;
  Detour update_;
};

// Buckets of whole modules, since a module writes all its gradients at once. A parameter that several modules use
// belongs to the first of them, which is the last to add to its gradient.
std::vector<Flat> cut_by_modules(const Setup& setup, double cap) {
  const UseMap uses = uses_of(setup);
  std::vector<std::vector<Parameter*>> buckets;  // from the last to the first
  BucketCap limit(cap);
  for (int module = static_cast<int>(setup.modules.size()) - 1; module >= 0; --module) {
    std::vector<Parameter*> home;
    for (Parameter* p : setup.parameters)
      if (!p->frozen && uses.at(p).first == module) home.push_back(p);
    if (home.empty()) continue;
    if (limit.opens()) buckets.emplace_back();
    buckets.back().insert(buckets.back().begin(), home.begin(), home.end());
    double bytes = 0;
    for (const Parameter* p : home)
      bytes += static_cast<double>(p->count) * static_cast<double>(size_of(wide(setup.dtype)));
    limit.add(bytes);
  }
  std::reverse(buckets.begin(), buckets.end());
  std::vector<Flat> flats;
  for (std::vector<Parameter*>& bucket : buckets) flats.emplace_back(std::move(bucket), setup.group.size());
  return flats;
}

class Zero2 : public Strategy {
 public:
  Zero2(const Setup& setup, double bucket_bytes, bool own_slots)
      : setup_(setup),
        flats_(cut_by_modules(setup_, bucket_bytes)),
        gradients_(setup_, flats_, setup_.group, own_slots, communication_) {
    make_frozen(setup_);
    for (size_t i = 0; i < flats_.size(); ++i) {
      values_.push_back(setup_.memory.allocate(Purpose::parameters, setup_.dtype, flats_[i].padded));
      flats_[i].bind_values(values_[i]);
      for (const Parameter* p : flats_[i].parameters) setup_.initial(*p, p->value);
      const View mine = flats_[i].shard(values_[i], setup_.group.rank());
      add_owned(owned_, flats_[i], setup_.group.rank(), mine, gradients_.shard(static_cast<int>(i)),
                make_state(setup_, mine));
    }
  }

  void begin_step(int) override { gradients_.begin_step(); }
  void before_backward(int module, int k) override { gradients_.before_backward(module, k); }
  void after_backward(int module, int k) override { gradients_.after_backward(module, k); }
  void finish_gradients() override { gradients_.finish(); }

  void finish_update() override {
    update_.follow(setup_.compute, communication_, [&](const Stream& stream) {
      for (size_t i = 0; i < flats_.size(); ++i)
        setup_.group.all_gather(flats_[i].shard(values_[i], setup_.group.rank()), values_[i], stream);
    });
  }

  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return setup_.group; }

 private:
  const Setup setup_;
  Stream own_;
  const Stream& communication_ = setup_.communication(own_);
  std::vector<Flat> flats_;
  ShardedGradients gradients_;
  std::vector<View> values_;
  std::vector<Owned> owned_;
  Detour update_;
};

}  // namespace

std::unique_ptr<Strategy> make_zero1(const Setup& setup, double bucket_bytes) {
  return std::make_unique<Zero1>(setup, bucket_bytes);
}
std::unique_ptr<Strategy> make_zero2(const Setup& setup, double bucket_bytes, bool own_slots) {
  return std::make_unique<Zero2>(setup, bucket_bytes, own_slots);
}

}  // namespace train
