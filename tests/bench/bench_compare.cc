// SPDX-License-Identifier: MIT
//
// How fast `lockstep compare` goes through dumps, against what cannot be avoided: reading both once, as memcmp does.
// The files are in the page cache; what is measured is the comparison, not the disk.

#include <time.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/bench/figures.h"
#include "verify/compare/compare.h"
#include "verify/dump/writer.h"

namespace {

using namespace lockstep;

constexpr int64_t kTensors = 16, kRows = 256, kColumns = 4096;  // 64 MiB of F32

// Of processor time: all of this is one thread's, and other programs should not count.
double seconds_of(const auto& work) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
  };
  const double begin = now();
  work();
  return now() - begin;
}

// The same tensors, whole, or by columns on two ranks; every value times `factor`.
void write_dump(const std::string& path, int ranks, float factor) {
  const int64_t width = kColumns / ranks;
  std::vector<float> values(static_cast<size_t>(kRows * width));
  for (int rank = 0; rank < ranks; rank++) {
    dump::Writer writer(path, rank, ranks);
    writer.begin_step(1);
    for (int64_t t = 0; t < kTensors; t++) {
      for (int64_t i = 0; i < kRows * width; i++) {
        const int64_t column = rank * width + i % width;
        values[static_cast<size_t>(i)] = factor * static_cast<float>((column * 31 + i / width * 7 + t) % 1009 - 500);
      }
      writer.tensor(
          "param/t" + std::to_string(t), dump::Dtype::f32, values.data(), {kRows, width},
          {{kRows, kColumns}, {{0, kRows}, {rank * width, rank * width + width}}, {}, dump::Placement::Kind::owned});
    }
    // A small one, as every model has; the controls run on it.
    writer.tensor("param/bias", dump::Dtype::f32, values.data(), {width},
                  {{kColumns}, {{rank * width, rank * width + width}}, {}, dump::Placement::Kind::owned});
    writer.end_step();
  }
}

double memcmp_seconds(const std::string& a, const std::string& b) {
  const auto left = dump::Safetensors::open(a + "/step000001/rank00000.safetensors");
  const auto right = dump::Safetensors::open(b + "/step000001/rank00000.safetensors");
  if (!left || !right) return 0;
  volatile int sink = 0;
  return seconds_of([&] {
    for (size_t i = 0; i < left->tensors().size(); i++)
      sink = sink + std::memcmp(left->tensors()[i].data, right->tensors()[i].data, left->tensors()[i].bytes);
  });
}

double compare_seconds(const std::string& a, const std::string& b, verify::Status expected) {
  return seconds_of([&] {
    const auto comparison = verify::compare_folders(a, b, {});
    if (!comparison || comparison->status != expected) {
      std::printf("the comparison went wrong: %s\n", comparison ? "another verdict" : comparison.error().c_str());
      std::exit(2);
    }
  });
}

}  // namespace

int main() {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("lockstep-bench-compare-" + std::to_string(getpid()))).string();
  const std::string a = folder + "/a", same = folder + "/same", cut = folder + "/cut", near = folder + "/near";
  write_dump(a, 1, 1);
  write_dump(same, 1, 1);
  write_dump(cut, 2, 1);
  write_dump(near, 1, 1.000001F);
  std::vector<double> bits, columns, numbers;
  memcmp_seconds(a, same);  // once, to map and warm
  for (int round = 0; round < 5; round++) {
    const double unavoidable = memcmp_seconds(a, same);
    bits.push_back(compare_seconds(a, same, verify::Status::same) / unavoidable);
    columns.push_back(compare_seconds(a, cut, verify::Status::same) / unavoidable);
    numbers.push_back(compare_seconds(a, near, verify::Status::same) / unavoidable);
  }
  const double gib = 2.0 * kTensors * kRows * kColumns * 4 / (1 << 30);
  const double once = memcmp_seconds(a, same);
  std::filesystem::remove_all(folder);
  bench::Figures figures;
  figures.tell("memcmp of two mapped dumps", gib / once, "GiB/s");
  figures.at_most("compare, the same bits: times memcmp", bench::quantile(bits, 0.5), 2, "x");
  figures.at_most("compare, cut by columns: times memcmp", bench::quantile(columns, 0.5), 3, "x");
  figures.at_most("compare, within tolerance: times memcmp", bench::quantile(numbers, 0.5), 12, "x");
  return figures.exit_status();
}
