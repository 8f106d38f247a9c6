// SPDX-License-Identifier: MIT

#include "reference/train/run/activations.h"

#include <fnmatch.h>

#include <algorithm>

namespace train {
namespace {

namespace dump = lockstep::dump;
using Kind = dump::Placement::Kind;

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Columns without padding.
std::vector<dump::Range> real_columns(const std::vector<dump::Range>& columns, int64_t width) {
  std::vector<dump::Range> real;
  for (const auto& [begin, end] : columns)
    if (begin < std::min(end, width)) real.push_back({begin, std::min(end, width)});
  return real;
}

// Are these rows a block of whole parts of sequences, one after another? Then its bounds: sequences, places.
std::vector<dump::Range> block_of(const std::vector<int64_t>& rows, int64_t length) {
  const int64_t first = rows.front(), last = rows.back();
  const dump::Range sequences{first / length, last / length + 1}, places{first % length, last % length + 1};
  size_t i = 0;
  for (int64_t sequence = sequences[0]; sequence < sequences[1]; ++sequence)
    for (int64_t place = places[0]; place < places[1]; ++place, ++i)
      if (i >= rows.size() || rows[i] != sequence * length + place) return {};
  return i == rows.size() ? std::vector<dump::Range>{sequences, places} : std::vector<dump::Range>{};
}

}  // namespace

dump::Dtype dump_type(Dtype dtype) {
  return dtype == Dtype::f64 ? dump::Dtype::f64 : dtype == Dtype::f32 ? dump::Dtype::f32 : dump::Dtype::bf16;
}

void check_activation_patterns(const Options& options, const Config& config) {
  if (!options.dump_act.empty() && options.dump.empty())
    throw Refusal("--dump-act says what goes to a dump: give --dump");
  const std::vector<std::string> names = activation_names(config);
  for (const std::string& pattern : options.dump_act)
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return matches(pattern, name); }))
      throw Refusal("--dump-act " + pattern + ": no activation has such a name; they are " + names.front() + ", " +
                    names[1] + " ... " + names.back() + " (docs/dump-format.md)");
}

dump::Placement place_rows(const std::vector<int64_t>& global, const std::vector<int64_t>& rows,
                           const std::vector<dump::Range>& columns, Kind kind) {
  const int64_t length = global[1], width = global[2];
  const std::vector<dump::Range> real = real_columns(columns, width);
  dump::Placement placement{global, {}, {}, kind};
  if (real.size() == 1 && !rows.empty()) placement.slice = block_of(rows, length);
  if (!placement.slice.empty()) {
    placement.slice.push_back(real[0]);
    return placement;
  }
  std::vector<dump::Range>& flat = placement.flat;
  for (const int64_t row : rows)
    for (const auto& [begin, end] : real) {
      if (!flat.empty() && flat.back()[1] == row * width + begin)
        flat.back()[1] = row * width + end;
      else
        flat.push_back({row * width + begin, row * width + end});
    }
  if (flat.empty()) flat.push_back({0, 0});
  return placement;
}

Activations::~Activations() {
  for (auto& [name, point] : points_)
    for (void* block : point.host) cudaFreeHost(block);
}

bool Activations::wants(const std::string& name) const {
  return std::any_of(options_.dump_act.begin(), options_.dump_act.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

// A pipeline's micro-batches come in the order of their numbers.
void Activations::see(int micro_batch, const Activation& activation) {
  Point& point = points_[activation.name];
  point.seen = activation;
  point.count = std::max(point.count, micro_batch + 1);
  const auto k = static_cast<size_t>(micro_batch);
  if (point.host.size() <= k) point.host.resize(k + 1, nullptr);
  if (point.host[k] == nullptr) check(cudaMallocHost(&point.host[k], activation.values.bytes()), "cudaMallocHost");
  check(cudaMemcpyAsync(point.host[k], activation.values.data, activation.values.bytes(), cudaMemcpyDeviceToHost,
                        compute_.get()),
        "cudaMemcpyAsync");
}

void Activations::write(dump::Writer& writer, const Batches& batches) {
  for (auto& [name, point] : points_) {
    if (point.count > 0) write(writer, batches, point);
    point.count = 0;
  }
}

void Activations::write(dump::Writer& writer, const Batches& batches, const Point& point) const {
  const Activation& seen = point.seen;
  int64_t columns = 0;
  for (const auto& range : seen.columns) columns += range[1] - range[0];
  const int64_t rows = seen.values.size / columns;
  const size_t element = size_of(seen.values.dtype);
  std::vector<int64_t> places;
  std::vector<char> bytes;
  for (int k = 0; k < point.count; ++k) {
    const std::vector<int64_t> all = batches.rows(k, options_.seq);
    places.insert(places.end(), all.begin() + seen.first_row, all.begin() + seen.first_row + rows);
    const char* at = static_cast<const char*>(point.host[static_cast<size_t>(k)]);
    for (int64_t row = 0; row < rows; ++row)
      for (const auto& [begin, end] : seen.columns) {
        const int64_t real = std::max<int64_t>(0, std::min(end, seen.width) - begin);
        bytes.insert(bytes.end(), at, at + static_cast<size_t>(real) * element);
        at += static_cast<size_t>(end - begin) * element;
      }
  }
  if (bytes.empty()) return;  // padding alone
  const dump::Placement placement = place_rows({options_.global_batch, options_.seq, seen.width}, places, seen.columns,
                                               seen.shared ? Kind::replica : Kind::owned);
  std::vector<int64_t> shape{static_cast<int64_t>(bytes.size() / element)};
  if (!placement.slice.empty()) {
    shape.clear();
    for (const auto& [begin, end] : placement.slice) shape.push_back(end - begin);
  }
  writer.tensor("act/" + seen.name, dump_type(seen.values.dtype), bytes.data(), shape, placement);
}

}  // namespace train
