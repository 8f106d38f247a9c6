// SPDX-License-Identifier: MIT

#include "tests/train/run/harness.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "reference/train/run/launch.h"
#include "reference/train/run/loop.h"
#include "verify/dump/folder.h"

namespace train::test {
namespace {

namespace dump = lockstep::dump;

// Before the first CUDA call of the process.
[[maybe_unused]] const bool kDevices = [] {
  setenv("LOCKSTEP_HOST_DEVICES", "64", 0);
  return true;
}();

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "train-test-XXXXXX";
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

Options parse(const std::string& line) {
  std::vector<std::string> words = {"lockstep-train"};
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(words.size()), argv.data());
}

std::vector<double> assemble(const std::string& name, const std::vector<dump::Shard>& shards) {
  std::vector<double> whole;
  std::vector<int> owners;
  for (const dump::Shard& shard : shards) {
    const auto size = static_cast<size_t>(dump::elements_of(shard.placement.global));
    whole.resize(size);
    owners.resize(size);
    std::vector<double> values(static_cast<size_t>(shard.stored->elements()));
    dump::to_double(shard.stored->dtype, shard.stored->data, values.size(), values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<size_t>(dump::global_offset(shard.placement, static_cast<int64_t>(i)));
      whole[at] = values[i];
      ++owners[at];
    }
  }
  for (size_t i = 0; i < owners.size(); ++i)
    if (owners[i] != 1) {
      ADD_FAILURE() << name << ": element " << i << " has " << owners[i] << " owners";
      break;
    }
  return whole;
}

std::map<std::string, std::vector<double>> read_step(const dump::DumpFolder& folder, int64_t number) {
  const auto step = dump::open_step(folder, number);
  if (!step) {
    ADD_FAILURE() << step.error();
    return {};
  }
  std::map<std::string, std::vector<double>> tensors;
  for (const auto& [name, shards] : step->tensors) tensors[name] = assemble(name, shards);
  return tensors;
}

Trained run(Options options) {
  const Launch launch = find_launch(options);
  complete_options(options, launch.world);
  options.quiet = true;
  const Text text(options.data.empty() ? bundled_text() : options.data, options.seq, options.vocab, options.packed);
  Trained result;
  run_ranks(launch, options, [&](int rank, const ncclUniqueId& id) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    Training training(options, text, rank, device, id);
    training.dump_first();
    for (int64_t n = 1; n <= options.steps; ++n) {
      const Training::Step step = training.step();
      if (rank != 0) continue;
      result.loss.push_back(step.loss);
      result.norm.push_back(step.norm);
      result.tokens.push_back(step.tokens);
    }
    for (int i = 0; rank == 0 && i < kPurposes; ++i) {
      const auto purpose = static_cast<Purpose>(i);
      result.memory[std::string(name_of(purpose))] = static_cast<double>(training.memory().high(purpose));
    }
    return 0;
  });
  return result;
}

void note(Difference& worst, double value, const std::string& where) {
  if (!(value <= worst.value)) worst = {value, where};  // NaN is the worst
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    apart += (a[i] - b[i]) * (a[i] - b[i]);
    size += a[i] * a[i];
  }
  return apart == 0 ? 0 : std::sqrt(apart / size);
}

}  // namespace

Trained train_quietly(const std::string& line) { return run(parse(line)); }

Trained train(const std::string& line) {
  const Folder folder;
  Options options = parse(line);
  options.dump = folder.path;
  Trained result = run(options);
  const auto opened = dump::open_folder(folder.path);
  if (!opened) {
    ADD_FAILURE() << opened.error();
    return result;
  }
  for (int64_t step = 0; step <= options.steps; ++step) result.steps.push_back(read_step(*opened, step));
  return result;
}

Difference difference(const Trained& a, const Trained& b) {
  Difference worst;
  const auto relative = [](double x, double y) { return x == y ? 0 : std::abs(x - y) / std::abs(x); };
  if (a.loss.size() != b.loss.size() || a.steps.size() != b.steps.size()) return {INFINITY, "number of steps"};
  for (size_t i = 0; i < a.loss.size(); ++i) {
    const std::string step = "step " + std::to_string(i + 1) + " ";
    note(worst, a.tokens[i] == b.tokens[i] ? 0 : INFINITY, step + "tokens");
    note(worst, relative(a.loss[i], b.loss[i]), step + "loss");
    note(worst, relative(a.norm[i], b.norm[i]), step + "norm");
  }
  for (size_t i = 0; i < a.steps.size(); ++i) {
    if (a.steps[i].size() != b.steps[i].size()) note(worst, INFINITY, "number of tensors");
    for (const auto& [name, values] : a.steps[i]) {
      const auto other = b.steps[i].find(name);
      note(worst, other == b.steps[i].end() ? INFINITY : distance(values, other->second),
           "step " + std::to_string(i) + " " + name);
    }
  }
  return worst;
}

std::string first_unequal(const Trained& a, const Trained& b) {
  const auto equal = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  if (a.steps.size() != b.steps.size()) return "number of steps";
  for (size_t i = 0; i < a.steps.size(); ++i) {
    if (a.steps[i].size() != b.steps[i].size()) return "number of tensors";
    for (const auto& [name, values] : a.steps[i])
      if (b.steps[i].count(name) == 0 || !equal(values, b.steps[i].at(name)))
        return "step " + std::to_string(i) + " " + name;
  }
  if (!equal(a.norm, b.norm)) return "norm";
  if (!equal(a.loss, b.loss)) return "loss";
  return "";
}

}  // namespace train::test
