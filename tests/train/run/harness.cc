// SPDX-License-Identifier: MIT

#include "tests/train/run/harness.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <exception>

#include "reference/train/run/launch.h"
#include "reference/train/run/loop.h"
#include "tests/train/run/command_line.h"
#include "verify/compare/compare.h"

namespace train::test {
namespace {

// Before the first CUDA call of the process.
[[maybe_unused]] const bool kDevices = [] {
  setenv("LOCKSTEP_HOST_DEVICES", "64", 0);
  return true;
}();

std::shared_ptr<const std::filesystem::path> make_folder() {
  std::string name = std::filesystem::temp_directory_path() / "train-test-XXXXXX";
  return {new std::filesystem::path(mkdtemp(name.data())), [](const std::filesystem::path* path) {
            std::filesystem::remove_all(*path);
            delete path;
          }};
}

void train_as(int rank, const ncclUniqueId& id, const Options& options, const Text& text, const TrainingState* from,
              Trained& result) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  Training training(options, text, rank, device, id);
  if (from != nullptr)
    training.restore(*from);
  else
    training.dump_first();
  while (training.state().step < options.steps) {
    const Training::Step step = training.step();
    if (rank != 0) continue;
    result.loss.push_back(step.loss);
    result.norm.push_back(step.norm);
    result.tokens.push_back(step.tokens);
    result.scale.push_back(step.loss_scale);
  }
  for (int i = 0; rank == 0 && i < kPurposes; ++i) {
    const auto purpose = static_cast<Purpose>(i);
    result.memory[std::string(name_of(purpose))] = static_cast<double>(training.memory().high(purpose));
  }
}

Trained run(Options options, const TrainingState* from = nullptr) {
  const Launch launch = find_launch(options);
  complete_options(options, launch.world);
  options.quiet = true;
  const Text text(options.data.empty() ? bundled_text() : options.data, options.seq, options.vocab, options.packed);
  Trained result;
  std::exception_ptr refused;  // by all ranks alike
  run_ranks(launch, options, [&](int rank, const ncclUniqueId& id) {
    try {
      train_as(rank, id, options, text, from, result);
    } catch (const Refusal&) {
      if (rank == 0) refused = std::current_exception();
    }
    return 0;
  });
  if (refused) std::rethrow_exception(refused);
  return result;
}

}  // namespace

Trained train_quietly(const std::string& line) { return run(parse_line(line)); }

static Trained run_with_dump(const std::string& line, const TrainingState* from) {
  const auto folder = make_folder();
  Options options = parse_line(line);
  options.dump = *folder;
  Trained result = run(options, from);
  result.dump = folder;
  return result;
}

Trained train(const std::string& line) { return run_with_dump(line, nullptr); }
Trained train_from(const TrainingState& state, const std::string& line) { return run_with_dump(line, &state); }

Verdict compare(const Trained& a, const Trained& b, double tolerance, double early_parameters) {
  lockstep::verify::CompareOptions options;
  options.rtol = tolerance;
  const auto found = lockstep::verify::compare_folders(*a.dump, *b.dump, options);
  if (!found) return {found.error(), 0, ""};
  const auto counts = [&](const lockstep::verify::Difference& d) {
    const bool early = d.kind == "value" && d.name.rfind("param/", 0) == 0 && d.step < found->a.steps.back();
    return !early || d.values->relative > early_parameters;
  };
  Verdict verdict;
  const auto first = std::find_if(found->differences.begin(), found->differences.end(), counts);
  if (first != found->differences.end())
    verdict.difference = "step " + std::to_string(first->step) + " " + first->name + ": " + first->sentence;
  else if (!found->incomplete.empty())
    verdict.difference = found->incomplete[0];
  for (const auto& [category, summary] : found->summaries) {
    verdict.worst = std::max(verdict.worst, summary.worst);
    if (summary.within > 0 && verdict.first_not_bitwise.empty()) verdict.first_not_bitwise = summary.worst_name;
  }
  return verdict;
}

std::string first_unequal(const Trained& a, const Trained& b) {
  const Verdict verdict = compare(a, b, 1e-5);
  return verdict.difference.empty() ? verdict.first_not_bitwise : verdict.difference;
}

}  // namespace train::test
