// SPDX-License-Identifier: MIT

#include "reference/train/parallel/buckets.h"

#include <algorithm>

namespace train {
namespace {

// Parameters in reverse; inside a bucket they stand in forward order.
std::vector<Flat> cut_into_buckets(const Setup& setup, double cap, int ranks) {
  std::vector<std::vector<Parameter*>> buckets;
  BucketCap limit(cap);
  for (auto p = setup.parameters.rbegin(); p != setup.parameters.rend(); ++p) {
    if ((*p)->frozen) continue;
    if (limit.opens()) buckets.emplace_back();
    buckets.back().insert(buckets.back().begin(), *p);
    limit.add(static_cast<double>((*p)->count) * static_cast<double>(size_of(wide(setup.dtype))));
  }
  std::vector<Flat> flats;
  for (std::vector<Parameter*>& bucket : buckets) flats.emplace_back(std::move(bucket), ranks);
  return flats;
}

}  // namespace

void BucketCap::add(double bytes) {
  constexpr double kFirstBucket = 1 << 20;
  if (!open_) {
    ++buckets_;
    bytes_ = 0;
  }
  bytes_ += bytes;
  open_ = bytes_ < (buckets_ == 1 ? std::min(cap_, kFirstBucket) : cap_);
}

Buckets::Buckets(const Setup& setup, double cap, int ranks)
    : communication_(setup.communication(own_)),
      flats_(cut_into_buckets(setup, cap, ranks)),
      gradients_(setup, flats_, communication_) {
  for (const Flat& flat : flats_) {
    values_.push_back(setup.memory.allocate(Purpose::parameters, setup.dtype, flat.padded));
    flat.bind_values(values_.back());
    for (const Parameter* p : flat.parameters) setup.initial(*p, p->value);
  }
}

}  // namespace train
