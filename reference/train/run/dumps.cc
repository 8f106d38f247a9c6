// SPDX-License-Identifier: MIT

#include "reference/train/run/dumps.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "verify/dump/folder.h"

namespace train {
namespace {

namespace dump = lockstep::dump;

void append(std::vector<dump::Range>& ranges, int64_t begin, int64_t end) {
  if (!ranges.empty() && ranges.back()[1] == begin)
    ranges.back()[1] = end;
  else
    ranges.push_back({begin, end});
}

// A run of elements that lie side by side both in the part and in the whole.
struct Run {
  int64_t local, global, count;
};

std::vector<Run> runs_of(const Parameter& p) {
  if (p.cut.empty()) return {{0, 0, p.count}};
  const auto dim = static_cast<size_t>(p.cut_dim);
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < p.global.size(); ++d) (d < dim ? outer : inner) *= d == dim ? 1 : p.global[d];
  std::vector<Run> runs;
  int64_t local = 0;
  for (int64_t o = 0; o < outer; ++o)
    for (const auto& range : p.cut) {
      const int64_t end = std::min(range[1], p.global[dim]);
      if (end > range[0]) runs.push_back({local, (o * p.global[dim] + range[0]) * inner, (end - range[0]) * inner});
      local += (range[1] - range[0]) * inner;
    }
  return runs;
}

bool belongs_to_dump(const std::string& name) {
  return name == dump::kMetricsFile || (name.rfind("step", 0) == 0 && name.size() > 4 &&
                                        name.find_first_not_of("0123456789", 4) == std::string::npos);
}

}  // namespace

void check_dump_folder(const std::string& path) {
  std::error_code failed;
  std::filesystem::create_directories(path, failed);
  if (!failed && access(path.c_str(), W_OK | X_OK) != 0) failed = {errno, std::generic_category()};
  std::filesystem::directory_iterator entry;
  if (!failed) entry = std::filesystem::directory_iterator(path, failed);
  if (failed) throw Refusal(path + ": no dump can be written there: " + failed.message() + " (--dump)");
  for (; entry != std::filesystem::directory_iterator(); entry.increment(failed))
    if (belongs_to_dump(entry->path().filename()))
      throw Refusal(path + " already holds a dump; name a new folder or remove it (--dump)");
}

FlatRanges ranges_of(const Parameter& parameter, int64_t begin, int64_t count) {
  FlatRanges found;
  for (const Run& run : runs_of(parameter)) {
    const int64_t low = std::max(run.local, begin), high = std::min(run.local + run.count, begin + count);
    if (low >= high) continue;
    append(found.global, run.global + low - run.local, run.global + high - run.local);
    append(found.local, low - begin, high - begin);
  }
  return found;
}

Dumps::Dumps(const Options& options, const Communicators& comms, const Place& place, int rank, const Stream& compute)
    : options_(options), comms_(comms), place_(place), compute_(compute), activations_(options, compute) {
  if (!options.dump.empty()) writer_.emplace(options.dump, rank, options.shape.world(), dump_type(options.dtype));
}

bool Dumps::wants(int64_t step) const { return writer_ && step % options_.dump_every == 0; }
Watcher* Dumps::watcher() { return options_.dump_act.empty() ? nullptr : &activations_; }
void Dumps::begin_step(int64_t step) { writer_->begin_step(step); }

// The owners' group covers the elements once; of the ranks beside it that hold the same ones the first is the owner.
bool Dumps::owns(const Strategy& strategy) const {
  if (&strategy.owners() == &comms_.data || &strategy.owners() == &comms_.world) return true;
  if (&strategy.owners() == &comms_.shard) return comms_.replicas.rank() == 0;
  return strategy.owners().size() > 1 || comms_.data.rank() == 0;
}

void Dumps::write(const std::string& name, const Owned& piece, View view) {
  if (!piece.counts) return;
  FlatRanges ranges;
  for (const auto& [begin, end] : overlap(piece.begin, piece.count, piece.parameter->elsewhere, true)) {
    const FlatRanges part = ranges_of(*piece.parameter, piece.begin + begin, end - begin);
    for (const dump::Range& r : part.global) append(ranges.global, r[0], r[1]);
    for (const dump::Range& r : part.local) append(ranges.local, begin + r[0], begin + r[1]);
  }
  if (ranges.global.empty()) return;
  std::vector<char> all(view.bytes());
  check(cudaMemcpyAsync(all.data(), view.data, all.size(), cudaMemcpyDeviceToHost, compute_.get()), "cudaMemcpyAsync");
  compute_.synchronize();
  std::vector<char> bytes;
  const auto element = static_cast<int64_t>(size_of(view.dtype));
  for (const dump::Range& r : ranges.local)
    bytes.insert(bytes.end(), all.begin() + r[0] * element, all.begin() + r[1] * element);
  const dump::Dtype type = dump_type(view.dtype);
  const std::vector<int64_t>& global = piece.parameter->global;
  const auto count = static_cast<int64_t>(bytes.size()) / element;
  if (count == dump::elements_of(global)) {
    writer_->tensor(name, type, bytes.data(), global, {.global = global, .slice = {}, .flat = {}});
  } else {
    writer_->tensor(name, type, bytes.data(), {count}, {.global = global, .slice = {}, .flat = ranges.global});
  }
}

void Dumps::gradients(Strategy& strategy) {
  for (const Owned& piece : strategy.owned())
    if (owns(strategy)) write("grad/" + piece.parameter->name, piece, piece.grad);
}

void Dumps::parameters(Strategy& strategy, const std::vector<Parameter*>& all) {
  const bool adam = options_.optimizer == "adamw";
  for (const Owned& piece : strategy.owned()) {
    if (!owns(strategy)) continue;
    const std::string& name = piece.parameter->name;
    write("param/" + name, piece, piece.value);
    if (piece.master.data != piece.value.data) write("master/" + name, piece, piece.master);
    write((adam ? "adam_m/" : "momentum/") + name, piece, piece.first);
    if (adam) write("adam_v/" + name, piece, piece.second);
  }
  // Parameters that are not trained belong to nobody in particular.
  const auto frozen = [](const Parameter* p) { return p->frozen; };
  if (std::none_of(all.begin(), all.end(), frozen)) return;
  strategy.gather_all();
  for (Parameter* p : all)
    if (p->frozen && (p->expert ? comms_.experts : comms_.data).rank() == 0)
      write("param/" + p->name, {p, 0, p->count, {}, {}, {}, {}, {}}, p->value);
  strategy.release_all();
}

void Dumps::batch(const Batches& batches) {
  activations_.write(*writer_, batches);
  if (place_.tp != 0 || place_.pp != 0) return;
  for (const Batches::Field& field : batches.fields(options_.seq))
    writer_->tensor("batch/" + field.name, dump::Dtype::i32, field.values.data(),
                    {static_cast<int64_t>(field.values.size())},
                    {.global = {options_.global_batch, options_.seq}, .slice = {}, .flat = field.ranges});
}

void Dumps::end_step(const dump::Metrics& metrics, const TrainingState& state) {
  writer_->note(kStateKey, state_text(state));
  writer_->metrics(metrics);
  writer_->end_step();
}

}  // namespace train
