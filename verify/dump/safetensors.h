// SPDX-License-Identifier: MIT
//
// safetensors files: eight bytes with the length of a JSON header, the header (per tensor: dtype, shape, begin and end
// of its bytes; texts under "__metadata__"), the bytes. Everybody in the field reads and writes them, none of them can
// run code, and a file is used where it lies: the reader maps it and copies nothing.
//
// The reader is strict. Bytes that no tensor claims or that two claim, a name given twice, a length that is not the
// shape's: each is refused in a sentence that names the file and the place in it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "interpose/trace/result.h"
#include "verify/dump/dtype.h"

namespace lockstep::dump {

inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the other readers

using Metadata = std::map<std::string, std::string>;

struct StoredTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  uint64_t offset;        // of its bytes in the file
  const std::byte* data;  // valid while the Safetensors lives; aligned to an element only in files of ours
  uint64_t bytes;
  int64_t elements() const { return static_cast<int64_t>(bytes / size_of(dtype)); }
};

// A file, mapped.
class Safetensors {
 public:
  // `again` ends the sentence about a file that is cut off: how its writer makes another one.
  static Result<Safetensors> open(const std::filesystem::path& path, const std::string& again = kDumpAgain);
  // The same checks for bytes in memory, which have to live as long; `name` stands in sentences.
  static Result<Safetensors> view(const std::byte* bytes, uint64_t size, const std::string& name,
                                  const std::string& again = kDumpAgain);

  Safetensors(Safetensors&& other) noexcept;
  Safetensors& operator=(Safetensors&& other) noexcept;
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;
  ~Safetensors();

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const StoredTensor* find(const std::string& name) const;
  const Metadata& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  static constexpr const char* kDumpAgain = "dump this step again";
  Safetensors() = default;
  std::string path_;
  void* map_ = nullptr;
  uint64_t map_bytes_ = 0;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t> by_name_;
  Metadata metadata_;
};

struct TensorToStore {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  const void* data;
};

// Whole tensors, such as the parameters for --save-init. Written under a temporary name and renamed. Large elements
// come first, so that all tensors are aligned. Gives the size of the file.
Result<uint64_t> write_safetensors(const std::filesystem::path& path, std::vector<TensorToStore> tensors,
                                   const Metadata& metadata = {});

}  // namespace lockstep::dump
