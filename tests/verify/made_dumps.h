// SPDX-License-Identifier: MIT
//
// Dump folders and shards by hand: a global tensor's values, and which part of them which rank holds.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "verify/dump/folder.h"
#include "verify/dump/writer.h"

namespace lockstep::test {

using dump::Dtype;
using dump::Placement;
using Kind = Placement::Kind;

// Values that differ from each other and from one name to the next, some of them negative.
inline std::vector<double> made_values(const std::string& name, int64_t count, double scale = 1) {
  double seed = 0;
  for (const char c : name) seed = std::fmod(seed * 31 + c, 97);
  std::vector<double> values;
  for (int64_t i = 0; i < count; i++)
    values.push_back(scale * std::sin(0.7 * static_cast<double>(i) + seed) * (1 + 0.01 * static_cast<double>(i % 13)));
  return values;
}

struct MadeTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
  Dtype dtype = Dtype::f64;
};

inline MadeTensor made(const std::string& name, const std::vector<int64_t>& shape, Dtype dtype = Dtype::f64) {
  return {shape, made_values(name, dump::elements_of(shape)), dtype};
}

inline Placement whole(const MadeTensor& tensor, Kind kind = Kind::owned) { return {tensor.shape, {}, {}, kind}; }
inline Placement sliced(const MadeTensor& tensor, std::vector<dump::Range> slice, Kind kind = Kind::owned) {
  return {tensor.shape, std::move(slice), {}, kind};
}
inline Placement flat(const MadeTensor& tensor, std::vector<dump::Range> ranges, Kind kind = Kind::owned) {
  return {tensor.shape, {}, std::move(ranges), kind};
}

inline std::vector<int64_t> local_shape(const Placement& placement) {
  if (!placement.flat.empty()) {
    int64_t count = 0;
    for (const auto& [begin, end] : placement.flat) count += end - begin;
    return {count};
  }
  if (placement.slice.empty()) return placement.global;
  std::vector<int64_t> shape;
  for (const auto& [begin, end] : placement.slice) shape.push_back(end - begin);
  return shape;
}

// The bytes of a rank's part.
inline std::vector<std::byte> local_bytes(const MadeTensor& tensor, const Placement& placement) {
  const int64_t count = dump::elements_of(local_shape(placement));
  const size_t size = dump::size_of(tensor.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * size);
  for (int64_t i = 0; i < count; i++)
    dump::from_double(tensor.dtype, tensor.values[static_cast<size_t>(dump::global_offset(placement, i))],
                      bytes.data() + static_cast<size_t>(i) * size);
  return bytes;
}

// Shards in memory.
class MadeShards {
 public:
  MadeShards& add(int rank, const MadeTensor& tensor, const Placement& placement) {
    bytes_.push_back(local_bytes(tensor, placement));
    stored_.push_back({"t", tensor.dtype, local_shape(placement), 0, bytes_.back().data(), bytes_.back().size()});
    shards.push_back({rank, &stored_.back(), placement});
    return *this;
  }
  std::vector<dump::Shard> shards;

 private:
  std::deque<std::vector<std::byte>> bytes_;
  std::deque<dump::StoredTensor> stored_;
};

// A folder; written when it is complete.
class MadeDump {
 public:
  MadeDump(std::string path, int ranks) : path_(std::move(path)), ranks_(ranks) {}

  MadeDump& tensor(int64_t step, int rank, const std::string& name, const MadeTensor& tensor,
                   const Placement& placement) {
    parts_[{step, rank}].push_back(
        {name, tensor.dtype, local_shape(placement), local_bytes(tensor, placement), placement});
    return *this;
  }
  MadeDump& on_all(int64_t step, const std::string& name, const MadeTensor& tensor) {
    for (int rank = 0; rank < ranks_; rank++) this->tensor(step, rank, name, tensor, whole(tensor, Kind::replica));
    return *this;
  }
  MadeDump& metrics(const dump::Metrics& line) {
    metrics_.push_back(line);
    return *this;
  }
  MadeDump& metrics_on_all(dump::Metrics line) {
    for (line.rank = 0; line.rank < ranks_; line.rank++) metrics_.push_back(line);
    return *this;
  }
  const std::string& write() {
    for (int rank = 0; rank < ranks_; rank++) dump::Writer(path_, rank, ranks_);
    for (const auto& [key, parts] : parts_) {
      dump::Writer writer(path_, key.second, ranks_);
      writer.begin_step(key.first);
      for (const Part& part : parts)
        writer.tensor(part.name, part.dtype, part.bytes.data(), part.shape, part.placement);
      writer.end_step();
    }
    for (const dump::Metrics& line : metrics_) dump::Writer(path_, line.rank, ranks_).metrics(line);
    return path_;
  }

 private:
  struct Part {
    std::string name;
    Dtype dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
    Placement placement;
  };
  std::string path_;
  int ranks_;
  std::map<std::pair<int64_t, int>, std::vector<Part>> parts_;
  std::vector<dump::Metrics> metrics_;
};

}  // namespace lockstep::test
