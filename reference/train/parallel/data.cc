// SPDX-License-Identifier: MIT
//
//   g = sum over ranks of g_rank            one all-reduce a bucket, once a step, during the last backward pass
//   every rank then makes the same update   no communication
//
// With n ranks and P parameters of e bytes: all-reduces of P e bytes in all, 2 (n - 1) / n P e sent by each rank,
// however many micro-batches a step has. Memory 16 P bytes in fp32: value, gradient, two moments.

#include "reference/train/parallel/data.h"

#include "reference/train/parallel/buckets.h"
#include "reference/train/parallel/compress.h"

namespace train {

void make_frozen(const Setup& setup) {
  for (Parameter* p : setup.parameters) {
    if (!p->frozen) continue;
    p->value = setup.memory.allocate(Purpose::parameters, setup.dtype, p->count);
    setup.initial(*p, p->value);
  }
}

namespace {

class DataParallel : public Strategy {
 public:
  DataParallel(const Setup& setup, double bucket_bytes, std::unique_ptr<Compressor> compressor)
      : setup_(setup), buckets_(setup_, bucket_bytes, 1), compressor_(std::move(compressor)) {
    make_frozen(setup_);
    for (int b = 0; b < buckets_.size(); ++b)
      add_owned(owned_, buckets_.flat(b), 0, buckets_.value(b), buckets_.gradient(b),
                make_state(setup_, buckets_.value(b)));
    buckets_.gradients().on_reduce([this](int bucket, View gradient) {
      const Stream& stream = buckets_.communication();
      if (compressor_ != nullptr) return compressor_->all_reduce(bucket, gradient, setup_.group, stream);
      setup_.group.all_reduce(gradient, ncclSum, stream);
    });
  }

  void begin_step(int) override { buckets_.gradients().begin_step(); }
  void after_backward(int module, int k) override { buckets_.gradients().after_backward(module, k); }
  void finish_gradients() override { buckets_.gradients().finish(); }

  std::vector<Owned>& owned() override { return owned_; }
  const Comm& owners() const override { return alone_; }

 private:
  const Setup setup_;
  Buckets buckets_;
  std::unique_ptr<Compressor> compressor_;
  std::vector<Owned> owned_;
  Comm alone_;
};

}  // namespace

std::unique_ptr<Strategy> make_data_parallel(const Setup& setup, double bucket_bytes,
                                             std::unique_ptr<Compressor> compressor) {
  return std::make_unique<DataParallel>(setup, bucket_bytes, std::move(compressor));
}

}  // namespace train
