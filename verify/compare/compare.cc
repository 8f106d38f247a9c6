// SPDX-License-Identifier: MIT
//
// The walk over two folders: which steps, which names, in which order; what could not be compared; and the verdict.

#include "verify/compare/compare.h"

#include <fnmatch.h>

#include <algorithm>
#include <iterator>

#include "verify/compare/order.h"
#include "verify/compare/session.h"

namespace lockstep::verify {

bool is_metric(const std::string& name) {
  return std::find(std::begin(kMetricNames), std::end(kMetricNames), name) != std::end(kMetricNames);
}

bool Session::wanted(const std::string& name) const {
  if (options.only.empty()) return true;
  if (is_metric(options.only)) return name == options.only;
  if (options.only.find_first_of("*?[") == std::string::npos) return name.find(options.only) != std::string::npos;
  return fnmatch(options.only.c_str(), name.c_str(), 0) == 0;
}

bool Session::wanted_metric() const {
  return std::any_of(std::begin(kMetricNames), std::end(kMetricNames), [&](const char* name) { return wanted(name); });
}

Summary& Session::summary(const std::string& name) {
  Summary& found = out.summaries[category_of(name)];
  found.names.insert(name);
  return found;
}

Tolerance Session::tolerance(Dtype dtype) {
  Tolerance tolerance = tolerance_of(dtype);
  if (dump::is_float(dtype) && computed_in && coarser(dtype, *computed_in) != dtype) {
    tolerance = tolerance_of(*computed_in);
    tolerance.reason = std::string("computed in ") + dump::name_of(*computed_in) + ": " + tolerance.reason;
  }
  if (options.rtol && dump::is_float(dtype)) tolerance = {*options.rtol, "as --rtol says"};
  return out.tolerances[dump::name_of(dtype)] = tolerance;
}

void Session::add(Difference difference) {
  Summary& found = summary(difference.name);
  found.different++;
  if (!found.first_step) found.first_step = difference.step;
  out.all_differences++;
  if (out.differences.size() < Comparison::kMostDifferences) out.differences.push_back(std::move(difference));
}

void Session::leave_out(const std::string& name, const std::string& why, int64_t step) {
  summary(name).not_judged++;
  gaps.add(why, category_of(name), step);
}

bool StepSide::has_category(const std::string& category) const {
  return std::any_of(step.tensors.begin(), step.tensors.end(),
                     [&](const auto& each) { return category_of(each.first) == category; });
}

bool Comparison::compared_metrics() const {
  return std::any_of(summaries.begin(), summaries.end(), [](const auto& each) { return is_metric(each.first); });
}

Summary Comparison::total() const {
  Summary all;
  for (const auto& [category, each] : summaries) {
    all.names.insert(each.names.begin(), each.names.end());
    all.bitwise += each.bitwise;
    all.within += each.within;
    all.different += each.different;
    all.not_judged += each.not_judged;
    if (each.within && each.worst >= all.worst) all.worst = each.worst, all.worst_name = each.worst_name;
  }
  return all;
}

namespace {

template <class Map>
std::set<int64_t> keys_of(const Map& map) {
  std::set<int64_t> keys;
  for (const auto& [key, value] : map) keys.insert(key);
  return keys;
}

// Steps that one side alone has.
void note_one_sided(Session& session, const char* what, const std::set<int64_t>& a, const std::set<int64_t>& b) {
  std::set<int64_t> only_a, only_b;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::inserter(only_a, only_a.end()));
  std::set_difference(b.begin(), b.end(), a.begin(), a.end(), std::inserter(only_b, only_b.end()));
  if (!only_a.empty())
    session.out.incomplete.push_back("only A has " + std::string(what) + " of " + steps_text(only_a));
  if (!only_b.empty())
    session.out.incomplete.push_back("only B has " + std::string(what) + " of " + steps_text(only_b));
}

// Proof, on the smallest tensor of each dtype that has had none, that the comparison can fail.
std::string run_controls(Session& session, const dump::DumpStep& step,
                         const std::map<Dtype, std::pair<int64_t, std::string>>& smallest) {
  for (const auto& [dtype, candidate] : smallest) {
    const Assembled assembled = assemble(candidate.second, step.tensors.at(candidate.second), {true});
    Control control = control_of(assembled.tensor, session.tolerance(dtype));
    if (!control.fault.empty())
      return "a control of this comparison failed on " + control.tensor + " (" + control.dtype + "): " + control.fault +
             "; do not trust it, and report this";
    session.out.controls.push_back(std::move(control));
  }
  return "";
}

// The sides of one step; tensors and metrics may each be there or not.
struct StepData {
  int64_t number = 0;
  std::optional<dump::DumpStep> a, b;
  std::vector<dump::Metrics> metrics_a, metrics_b;
};

// What is to be compared in a step, in the order of its computation.
std::vector<std::string> names_of(const Session& session, const StepData& step) {
  std::set<std::string> names;
  if (!step.metrics_a.empty() && !step.metrics_b.empty())
    names.insert(std::begin(kMetricNames), std::end(kMetricNames));
  if (step.a && step.b)
    for (const dump::DumpStep* side : {&*step.a, &*step.b})
      for (const auto& [name, shards] : side->tensors) names.insert(name);
  std::vector<std::string> wanted;
  std::copy_if(names.begin(), names.end(), std::back_inserter(wanted),
               [&](const std::string& name) { return session.wanted(name); });
  std::sort(wanted.begin(), wanted.end(), computed_before);
  return wanted;
}

void learn_worlds(Session& session, const StepData& step) {
  session.out.a.world_size = std::max(session.out.a.world_size, step.a->world_size);
  session.out.b.world_size = std::max(session.out.b.world_size, step.b->world_size);
  session.worlds = {session.out.a.world_size, session.out.b.world_size};
  const auto keep_coarser = [](std::optional<Dtype>& kept, Dtype dtype) {
    if (dump::is_float(dtype)) kept = kept ? coarser(*kept, dtype) : dtype;
  };
  for (const dump::DumpStep* side : {&*step.a, &*step.b}) {
    if (side->computed_in) keep_coarser(session.computed_in, *side->computed_in);
    for (const auto& [name, shards] : side->tensors) keep_coarser(session.coarsest, shards.front().stored->dtype);
  }
}

// Where a rank left no file nothing can be said of its copies, even if the others hold every element.
void note_missing_ranks(Session& session, const StepData& step) {
  for (const auto& [side, data] : {std::pair{"A", &step.a}, std::pair{"B", &step.b}})
    if (*data && !(*data)->missing_ranks.empty())
      session.gaps.add(std::string(side) + " lacks files of " + ranks_text((*data)->missing_ranks), "", step.number);
}

std::string compare_step(Session& session, const StepData& step) {
  note_missing_ranks(session, step);
  std::map<Dtype, std::pair<int64_t, std::string>> smallest;
  const auto controlled = [&](const std::string& dtype) {
    return std::any_of(session.out.controls.begin(), session.out.controls.end(),
                       [&](const Control& control) { return control.dtype == dtype; });
  };
  std::map<std::string, bool> others;  // categories: have their names nothing in common?
  for (const std::string& name : names_of(session, step)) {
    if (is_metric(name)) {
      compare_metric(session, step.metrics_a, step.metrics_b, step.number, name);
      continue;
    }
    const StepSide a{'A', *step.a}, b{'B', *step.b};
    const std::string category = category_of(name);
    const auto [other, first] = others.try_emplace(category);
    if (first && (other->second = names_are_others(a, b, category))) note_other_names(session, a, b, category);
    if (other->second) continue;
    const ComparedTensor compared = compare_tensor(session, a, b, name);
    if (!compared.sound || compared.elements == 0 || controlled(dump::name_of(compared.dtype))) continue;
    const auto [at, fresh] = smallest.try_emplace(compared.dtype, compared.elements, name);
    if (!fresh && compared.elements < at->second.first) at->second = {compared.elements, name};
  }
  return step.a ? run_controls(session, *step.a, smallest) : "";
}

Result<std::optional<dump::DumpStep>> open_if(const dump::DumpFolder& folder, int64_t number, bool wanted) {
  if (!wanted) return std::optional<dump::DumpStep>();
  Result<dump::DumpStep> step = dump::open_step(folder, number);
  if (!step) return Error{step.error()};
  return std::optional<dump::DumpStep>(std::move(*step));
}

// Every step that both sides have something of.
std::string compare_steps(Session& session, const dump::DumpFolder& a, const dump::DumpFolder& b) {
  const MetricLines metrics_a('A', a), metrics_b('B', b);
  std::set<int64_t> tensors_a = keys_of(a.steps), tensors_b = keys_of(b.steps), lines_a = keys_of(metrics_a.by_step),
                    lines_b = keys_of(metrics_b.by_step);
  session.out.a.steps.assign(tensors_a.begin(), tensors_a.end());
  session.out.b.steps.assign(tensors_b.begin(), tensors_b.end());
  if (const auto only = session.options.step) {
    for (std::set<int64_t>* each : {&tensors_a, &tensors_b, &lines_a, &lines_b})
      *each = each->count(*only) ? std::set{*only} : std::set<int64_t>{};
    if (tensors_a.empty() && tensors_b.empty() && lines_a.empty() && lines_b.empty())
      return "--step " + std::to_string(*only) + ": neither folder has that step; A has tensors of " +
             steps_text(keys_of(a.steps)) + ", B of " + steps_text(keys_of(b.steps));
  }
  if (!is_metric(session.options.only)) note_one_sided(session, "tensors", tensors_a, tensors_b);
  if (session.wanted_metric()) note_one_sided(session, "metrics", lines_a, lines_b);

  std::set<int64_t> numbers;
  std::set_intersection(tensors_a.begin(), tensors_a.end(), tensors_b.begin(), tensors_b.end(),
                        std::inserter(numbers, numbers.end()));
  const std::set<int64_t> with_tensors = numbers;
  std::set_intersection(lines_a.begin(), lines_a.end(), lines_b.begin(), lines_b.end(),
                        std::inserter(numbers, numbers.end()));
  size_t done = 0;
  for (const int64_t number : numbers) {
    if (session.options.progress) session.options.progress(number, done++, numbers.size());
    const bool tensors = with_tensors.count(number) > 0 && !is_metric(session.options.only);
    StepData step;
    step.number = number;
    Result<std::optional<dump::DumpStep>> left = open_if(a, number, tensors), right = open_if(b, number, tensors);
    if (!left) return left.error();
    if (!right) return right.error();
    step.a = std::move(*left);
    step.b = std::move(*right);
    step.metrics_a = metrics_a.of(number);
    step.metrics_b = metrics_b.of(number);
    if (step.a) learn_worlds(session, step);
    if (session.wanted_metric()) {
      note_missing_lines(session, metrics_a, number, step.a ? step.a->world_size : metrics_a.ranks_at(number));
      note_missing_lines(session, metrics_b, number, step.b ? step.b->world_size : metrics_b.ranks_at(number));
    }
    if (std::string fault = compare_step(session, step); !fault.empty()) return fault;
  }
  if (session.wanted_metric())
    for (const MetricLines* lines : {&metrics_a, &metrics_b}) note_lonely_writer(session, *lines);
  return "";
}

void conclude(Session& session) {
  Comparison& out = session.out;
  for (std::string& sentence : session.gaps.sentences()) out.incomplete.push_back(std::move(sentence));
  for (const auto& [dtypes, names] : session.dtypes)
    out.notes.push_back(std::to_string(names.size()) + (names.size() == 1 ? " tensor is " : " tensors are ") +
                        dtypes.first + " in A and " + dtypes.second + " in B, such as " + *names.begin() +
                        ": the coarser type's tolerance holds");
  if (out.steps.empty() && out.all_differences == 0)
    out.incomplete.push_back("there is nothing that both folders have, so nothing was compared");
  for (const auto& [category, summary] : out.summaries) out.categories.push_back(category);
  std::sort(out.categories.begin(), out.categories.end(), computed_before);
  out.status = out.all_differences ? Status::different : !out.incomplete.empty() ? Status::incomplete : Status::same;
}

}  // namespace

Result<Comparison> compare_folders(const std::string& path_a, const std::string& path_b,
                                   const CompareOptions& options) {
  Result<dump::DumpFolder> a = dump::open_folder(path_a);
  if (!a) return Error{a.error()};
  Result<dump::DumpFolder> b = dump::open_folder(path_b);
  if (!b) return Error{b.error()};
  Session session{options};
  session.out.a.path = path_a;
  session.out.b.path = path_b;
  for (const dump::DumpFolder* folder : {&*a, &*b})
    session.out.notes.insert(session.out.notes.end(), folder->notes.begin(), folder->notes.end());
  if (std::error_code failed; std::filesystem::equivalent(path_a, path_b, failed))
    session.out.notes.push_back("A and B are the same folder: all that is told is whether it is sound by itself");
  if (session.wanted_metric())
    for (const dump::DumpFolder* folder : {&*a, &*b})
      session.out.incomplete.insert(session.out.incomplete.end(), folder->missing.begin(), folder->missing.end());
  if (const std::string fault = compare_steps(session, *a, *b); !fault.empty()) return Error{fault};
  if (!options.only.empty() && session.out.summaries.empty() && session.out.incomplete.empty())
    return Error{"--only " + options.only + ": no tensor and no metric that both folders have matches it"};
  if (Control control = metric_control(); !control.fault.empty())
    return Error{"a control of this comparison failed: " + control.fault + "; do not trust it, and report this"};
  else if (session.out.compared_metrics())
    session.out.controls.push_back(std::move(control));
  conclude(session);
  return std::move(session.out);
}

}  // namespace lockstep::verify
