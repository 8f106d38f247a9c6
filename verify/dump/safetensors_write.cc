// SPDX-License-Identifier: MIT

#include <algorithm>
#include <stdexcept>

#include "verify/dump/output.h"
#include "verify/dump/placement.h"
#include "verify/dump/safetensors.h"

namespace lockstep::dump {

Result<uint64_t> write_safetensors(const std::filesystem::path& path, std::vector<TensorToStore> tensors,
                                   const Metadata& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorToStore& a, const TensorToStore& b) { return size_of(a.dtype) > size_of(b.dtype); });
  std::vector<HeaderEntry> entries;
  uint64_t end = 0;
  for (const TensorToStore& tensor : tensors) {
    const int64_t elements = elements_of(tensor.shape);
    if (elements < 0)
      return Error{path.string() + ": tensor \"" + tensor.name + "\" cannot have the shape " +
                   shape_text(tensor.shape)};
    const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(tensor.dtype);
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, end, bytes});
    end += bytes;
  }
  try {
    const std::string header = header_bytes(entries, metadata);
    OutputFile file(path);
    file.write_at(0, header.data(), header.size());
    for (size_t i = 0; i < tensors.size(); i++)
      file.write_at(header.size() + entries[i].begin, tensors[i].data, entries[i].bytes);
    file.publish();
    return header.size() + end;
  } catch (const std::runtime_error& error) {
    const std::string sentence = error.what();
    return Error{sentence.rfind(path.string(), 0) == 0 ? sentence : path.string() + ": " + sentence};
  }
}

}  // namespace lockstep::dump
