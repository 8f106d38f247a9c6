// SPDX-License-Identifier: MIT
//
// See writer.h. A safetensors file begins with a header whose length is known only when the last tensor is. So the
// tensors are written behind as much room as the last step's header took, which is right from the second step on; in
// the first one they are moved up at the end.

#include "verify/dump/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <stdexcept>
#include <system_error>

#include "verify/dump/folder.h"
#include "verify/dump/output.h"

namespace lockstep::dump {
namespace {

constexpr size_t kAligned = 8;

}  // namespace

struct Writer::Step {
  Step(int64_t number_, std::filesystem::path path) : number(number_), file(std::move(path)) {}
  int64_t number;
  OutputFile file;
  uint64_t written = 0;  // bytes of tensors in the file
  std::vector<HeaderEntry> entries;
  std::set<std::string> names;
  Metadata metadata;
  struct Waiting {
    HeaderEntry entry;
    std::vector<char> bytes;
  };
  std::vector<Waiting> waiting;
};

Writer::Writer(std::filesystem::path folder, int rank, int world_size, std::optional<Dtype> computed_in)
    : folder_(std::move(folder)), rank_(rank), world_size_(world_size), computed_in_(computed_in) {
  if (rank < 0 || rank >= world_size)
    throw std::runtime_error(folder_.string() + ": there is no rank " + std::to_string(rank) + " of " +
                             std::to_string(world_size));
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  if (failed) throw std::runtime_error(folder_.string() + ": the folder for dumps cannot be made: " + failed.message());
}

Writer::~Writer() = default;

void Writer::begin_step(int64_t step) {
  if (step_)
    throw std::runtime_error("a dump of step " + std::to_string(step) + " begins before the one of step " +
                             std::to_string(step_->number) + " has ended");
  if (step < 0) throw std::runtime_error("a dump of step " + std::to_string(step) + ": steps count from 0");
  const std::filesystem::path folder = folder_ / step_folder_name(step);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) throw std::runtime_error(folder.string() + ": the folder cannot be made: " + failed.message());
  step_ = std::make_unique<Step>(step, folder / rank_file_name(rank_));
  step_->metadata = {{"lockstep_dump", std::to_string(kFormatVersion)},
                     {"step", std::to_string(step)},
                     {"rank", std::to_string(rank_)},
                     {"world_size", std::to_string(world_size_)}};
  if (computed_in_) step_->metadata["computed_in"] = name_of(*computed_in_);
}

void Writer::tensor(std::string name, Dtype dtype, const void* data, std::vector<int64_t> local_shape,
                    Placement placement) {
  const std::string where = folder_.string() + ": tensor \"" + name + "\" of rank " + std::to_string(rank_) + ": ";
  if (!step_) throw std::runtime_error(where + "it belongs between begin_step and end_step");
  if (!step_->names.insert(name).second) throw std::runtime_error(where + "it was dumped in this step already");
  const int64_t elements = elements_of(local_shape);
  if (elements < 0) throw std::runtime_error(where + "it cannot have the shape " + shape_text(local_shape));
  if (const std::string fault = placement_fault(placement, local_shape); !fault.empty())
    throw std::runtime_error(where + fault);

  const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(dtype);
  step_->metadata[kPlacementPrefix + name] = placement_text(placement);
  HeaderEntry entry{std::move(name), dtype, std::move(local_shape), step_->written, bytes};
  if (bytes % kAligned) {
    const char* begin = static_cast<const char*>(data);
    step_->waiting.push_back({std::move(entry), {begin, begin + bytes}});
    return;
  }
  step_->file.write_at(header_room_ + step_->written, data, bytes);
  step_->written += bytes;
  step_->entries.push_back(std::move(entry));
}

void Writer::note(const std::string& key, std::string text) {
  const std::string where = folder_.string() + ": the note \"" + key + "\" of rank " + std::to_string(rank_) + ": ";
  if (!step_) throw std::runtime_error(where + "it belongs between begin_step and end_step");
  if (key.rfind(kPlacementPrefix, 0) == 0 || key == "computed_in")
    throw std::runtime_error(where + "the format has a meaning for this key");
  if (!step_->metadata.emplace(key, std::move(text)).second)
    throw std::runtime_error(where + "the step's file has it already");
}

void Writer::end_step() {
  if (!step_) throw std::runtime_error(folder_.string() + ": end_step without begin_step");
  Step& step = *step_;
  std::stable_sort(step.waiting.begin(), step.waiting.end(), [](const Step::Waiting& a, const Step::Waiting& b) {
    return size_of(a.entry.dtype) > size_of(b.entry.dtype);
  });
  for (Step::Waiting& each : step.waiting) {
    each.entry.begin = step.written;
    step.file.write_at(header_room_ + step.written, each.bytes.data(), each.bytes.size());
    step.written += each.bytes.size();
    step.entries.push_back(std::move(each.entry));
  }
  const std::string header = header_bytes(step.entries, step.metadata, header_room_);
  if (header.size() > header_room_) {
    step.file.move_up(header_room_, header.size(), step.written);
    header_room_ = header.size();
  }
  step.file.write_at(0, header.data(), header.size());
  step.file.publish();
  step_.reset();
}

// One write to the end of the file, so that lines of ranks that write at once do not mix.
void Writer::metrics(const Metrics& metrics) {
  const std::string text = metrics_line(metrics);
  const std::filesystem::path path = folder_ / kMetricsFile;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  ssize_t done = -1;
  if (fd >= 0) done = write(fd, text.data(), text.size());
  const std::string failed = std::system_category().message(errno);
  if (fd >= 0) close(fd);
  if (done != static_cast<ssize_t>(text.size()))
    throw std::runtime_error(path.string() + ": cannot be written: " + failed);
}

}  // namespace lockstep::dump
