// SPDX-License-Identifier: MIT

#include "reference/train/run/weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "reference/train/kernels/kernels.h"
#include "reference/train/model/parameters.h"
#include "reference/train/run/options.h"
#include "verify/dump/placement.h"
#include "verify/dump/safetensors.h"

namespace train {
namespace {

namespace dump = lockstep::dump;

dump::Dtype dump_type(Dtype dtype) {
  return dtype == Dtype::f64 ? dump::Dtype::f64 : dtype == Dtype::f32 ? dump::Dtype::f32 : dump::Dtype::bf16;
}

int64_t product(const std::vector<int64_t>& shape, size_t from) {
  int64_t result = 1;
  for (size_t d = from; d < shape.size(); ++d) result *= shape[d];
  return result;
}

// The part of a whole tensor that `p` names, vocabulary padding being zero.
std::vector<double> part_of(const std::vector<double>& whole, const Parameter& p) {
  if (p.cut.empty()) return whole;
  const auto dim = static_cast<size_t>(p.cut_dim);
  const int64_t inner = product(p.global, dim + 1), length = p.global[dim];
  const int64_t outer = static_cast<int64_t>(whole.size()) / (inner * length);
  std::vector<double> part;
  for (int64_t o = 0; o < outer; ++o)
    for (const auto& range : p.cut)
      for (int64_t i = range[0] * inner; i < range[1] * inner; ++i)
        part.push_back(i < length * inner ? whole[static_cast<size_t>(o * length * inner + i)] : 0);
  return part;
}

// Doubles to the device; the conversion to the parameter's type is a kernel's.
void upload(const std::vector<double>& values, View to, const Stream& stream) {
  View wide{nullptr, to.size, Dtype::f64};
  check(cudaMalloc(&wide.data, wide.bytes()), "cudaMalloc");
  check(cudaMemcpyAsync(wide.data, values.data(), wide.bytes(), cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync");
  convert(stream.get(), to, wide);
  stream.synchronize();
  check(cudaFree(wide.data), "cudaFree");
}

}  // namespace

void save_init(const std::string& path, const Config& config, int device) {
  Memory memory(device);
  const Stream stream;
  const Groups alone;
  const Parameters parameters(config, alone);
  std::vector<std::vector<char>> bytes;
  std::vector<dump::TensorToStore> tensors;
  for (const auto& p : parameters.all()) {
    const View view = memory.allocate(Purpose::parameters, config.dtype, p->count);
    initialise(stream.get(), config, *p, view);
    std::vector<char>& host = bytes.emplace_back(view.bytes());
    check(cudaMemcpyAsync(host.data(), view.data, host.size(), cudaMemcpyDeviceToHost, stream.get()),
          "cudaMemcpyAsync");
    tensors.push_back({p->name, dump_type(config.dtype), p->global, nullptr});  // padding is at the end, and left out
  }
  stream.synchronize();
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = bytes[i].data();
  if (const auto size = dump::write_safetensors(path, tensors); !size) throw Refusal(size.error());
}

std::function<void(const Parameter&, View)> initial_values(const std::string& path, const Config& config,
                                                           const Stream& stream) {
  if (path.empty())
    return [&config, &stream](const Parameter& p, View into) { initialise(stream.get(), config, p, into); };
  auto opened = dump::Safetensors::open(path);
  if (!opened) throw Refusal(opened.error());
  const auto file = std::make_shared<dump::Safetensors>(std::move(*opened));
  return [file, path, &stream](const Parameter& p, View into) {
    const dump::StoredTensor* stored = file->find(p.name);
    if (stored == nullptr) throw Refusal(path + " has no tensor " + p.name + " (--init)");
    if (stored->shape != p.global)
      throw Refusal(path + ": " + p.name + " has shape " + dump::shape_text(stored->shape) + ", but the model's is " +
                    dump::shape_text(p.global));
    std::vector<double> whole(static_cast<size_t>(stored->elements()));
    dump::to_double(stored->dtype, stored->data, whole.size(), whole.data());
    upload(part_of(whole, p), into, stream);
  };
}

}  // namespace train
