// SPDX-License-Identifier: MIT

#include "reference/train/run/weights.h"

#include <algorithm>
#include <filesystem>
#include <set>
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

// Where a file of this name is written: links are followed, and nothing but a file is replaced.
std::filesystem::path place_for(const std::string& path) {
  std::error_code failed;
  const std::filesystem::file_status at = std::filesystem::status(path, failed);
  if (std::filesystem::is_regular_file(at)) return std::filesystem::canonical(path);
  if (at.type() != std::filesystem::file_type::not_found || std::filesystem::is_symlink(path, failed))
    throw Refusal(path + " is there already and is not a regular file (--save-init)");
  return path;
}

std::shared_ptr<const dump::Safetensors> open_init(const std::string& path) {
  std::error_code failed;
  const std::filesystem::file_status at = std::filesystem::status(path, failed);
  if (std::filesystem::exists(at) && !std::filesystem::is_regular_file(at))
    throw Refusal(path + " is not a regular file (--init)");
  auto opened = dump::Safetensors::open(path, "make it again with --save-init");
  if (!opened) throw Refusal(opened.error());
  return std::make_shared<dump::Safetensors>(std::move(*opened));
}

const dump::StoredTensor& find_init(const dump::Safetensors& file, const Parameter& p) {
  const dump::StoredTensor* stored = file.find(p.name);
  if (stored == nullptr) throw Refusal(file.path() + " has no tensor " + p.name + " (--init)");
  if (stored->shape != p.global)
    throw Refusal(file.path() + ": " + p.name + " has shape " + dump::shape_text(stored->shape) +
                  ", but the model's is " + dump::shape_text(p.global));
  return *stored;
}

}  // namespace

void save_init(const std::string& path, const Config& config, int device) {
  const std::filesystem::path place = place_for(path);
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
  if (const auto size = dump::write_safetensors(place, tensors); !size) throw Refusal(size.error());
}

void check_init(const std::string& path, const Config& config) {
  const auto file = open_init(path);
  const Groups alone;
  const Parameters parameters(config, alone);
  std::set<std::string> names;
  for (const auto& p : parameters.all()) names.insert(find_init(*file, *p).name);
  for (const dump::StoredTensor& stored : file->tensors())
    if (names.count(stored.name) == 0)
      throw Refusal(path + " has a tensor " + stored.name + " that the model does not have (--init)");
}

std::function<void(const Parameter&, View)> initial_values(const std::string& path, const Config& config,
                                                           const Stream& stream) {
  if (path.empty())
    return [&config, &stream](const Parameter& p, View into) { initialise(stream.get(), config, p, into); };
  return [file = open_init(path), &stream](const Parameter& p, View into) {
    const dump::StoredTensor& stored = find_init(*file, p);
    std::vector<double> whole(static_cast<size_t>(stored.elements()));
    dump::to_double(stored.dtype, stored.data, whole.size(), whole.data());
    upload(part_of(whole, p), into, stream);
  };
}

}  // namespace train
