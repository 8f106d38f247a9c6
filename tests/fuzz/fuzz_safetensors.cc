// SPDX-License-Identifier: MIT
//
// Feeds the readers of dumps. The first byte says what the rest is: a whole file; a header whose length is put before
// it and zeros behind it, so that what is inside the JSON is reached; or metrics. What is read is assembled and
// compared with itself, which must be the same but for NaNs, which are the same as nothing.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "verify/assemble/assemble.h"
#include "verify/compare/values.h"
#include "verify/dump/folder.h"

namespace {

using namespace lockstep;

// A small header that is right, and what is put into it by its place: most inputs that differ in a few bytes stay
// files.
const std::string kHeader =
    R"({"__metadata__":{"placement:x":"{\"global\":[4,3],\"slice\":[[1,3],[0,3]]}","step":"1"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"y":{"dtype":"U8","shape":[2],"data_offsets":[24,26]}})";

void read_tensors(const std::string& bytes) {
  const Result<dump::Safetensors> file =
      dump::Safetensors::view(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "f");
  if (!file) return;
  for (const dump::StoredTensor& tensor : file->tensors()) {
    const Result<dump::Placement> placement = dump::placement_in(*file, tensor);
    if (!placement) continue;
    const verify::Assembled assembled = verify::assemble(tensor.name, {{0, &tensor, *placement}}, {true});
    if (!assembled.usable()) continue;
    const verify::Values values = verify::compare_values(assembled.tensor, assembled.tensor, {});
    if (values.outcome != verify::Outcome::bitwise && values.nan_a == 0) abort();
  }
}

std::string with_length(const std::string& header, size_t data) {
  std::string bytes;
  for (unsigned i = 0; i < 8; i++) bytes += static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return bytes + header + std::string(data, '\0');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    read_tensors(with_length(kHeader, 26));
    return 0;
  }
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'L') {
    read_tensors(rest);
  } else if (data[0] == 'M') {
    std::vector<std::string> notes, missing;
    (void)dump::read_metrics("m", rest, notes, missing);
  } else if (data[0] == 'H') {
    read_tensors(with_length(rest, 64));
  } else {  // patches to the good header
    std::string header = kHeader;
    for (size_t i = 0; i + 2 <= rest.size(); i += 2)
      header[static_cast<uint8_t>(rest[i]) % header.size()] = rest[i + 1];
    read_tensors(with_length(header, 26));
  }
  return 0;
}
