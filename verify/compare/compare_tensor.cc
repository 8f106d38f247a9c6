// SPDX-License-Identifier: MIT
//
// One tensor of one step: both sides by themselves, then against each other.

#include <algorithm>

#include "verify/compare/order.h"
#include "verify/compare/session.h"

namespace lockstep::verify {
namespace {

constexpr size_t kMostLocated = 50;  // so many differences get a place and a hint; finding these costs another reading

const std::vector<dump::Shard>* shards_of(const StepSide& side, const std::string& name) {
  const auto found = side.step.tensors.find(name);
  return found == side.step.tensors.end() ? nullptr : &found->second;
}

std::vector<std::string> names_in(const StepSide& side, const std::string& category) {
  std::vector<std::string> names;
  for (const auto& [name, shards] : side.step.tensors)
    if (category_of(name) == category) names.push_back(name);
  return names;
}

// The one tensor of the other side that has no counterpart, either, and the same shape: perhaps it is the same one.
std::string renamed_hint(const StepSide& has, const StepSide& lacks, const std::string& name) {
  const std::vector<int64_t>& shape = has.step.tensors.at(name).front().placement.global;
  std::vector<std::string> candidates;
  for (const std::string& each : names_in(lacks, category_of(name)))
    if (!shards_of(has, each) && shards_of(lacks, each)->front().placement.global == shape) candidates.push_back(each);
  if (candidates.size() != 1) return "";
  return "only " + std::string(1, lacks.name) + " has " + candidates[0] + ", of the same shape " +
         dump::shape_text(shape) + ": the same parameter under another name? Names must be equal to be compared";
}

// A tensor that one side lacks.
void note_missing(Session& session, const StepSide& has, const StepSide& lacks, const std::string& name) {
  const std::string side(1, lacks.name), category = category_of(name);
  if (!lacks.step.missing_ranks.empty())
    return session.leave_out(name, side + " lacks files of " + ranks_text(lacks.step.missing_ranks), lacks.step.number);
  if (!lacks.has_category(category))
    return session.leave_out(name, side + " has no tensors " + category + "/", lacks.step.number);
  Difference difference;
  difference.step = lacks.step.number;
  difference.name = name;
  difference.kind = "missing";
  difference.side = lacks.name;
  difference.sentence = std::string("only ") + has.name + " has it, " + side + " has other tensors of " + category;
  difference.hint = renamed_hint(has, lacks, name);
  if (category == "grad" && difference.hint.empty())
    difference.hint = "a gradient that is not there: a parameter that is not used, is frozen, or was lost";
  if ((category == "adam_m" || category == "adam_v" || category == "momentum") && difference.hint.empty())
    difference.hint = "a parameter without optimizer state: the optimizer does not hold it, so it is never updated";
  session.add(std::move(difference));
}

// What is wrong with one side by itself. False: it cannot be compared.
bool note_faults(Session& session, const StepSide& side, const Assembled& assembled) {
  const std::string name(1, side.name);
  for (const Fault& fault : assembled.faults) {
    if (fault.kind == Fault::Kind::not_summed) {
      session.leave_out(assembled.tensor.name, "in " + name + ", " + fault.sentence, side.step.number);
      continue;
    }
    if (fault.kind == Fault::Kind::gap && !side.step.missing_ranks.empty()) {
      session.leave_out(assembled.tensor.name, name + " lacks files of " + ranks_text(side.step.missing_ranks),
                        side.step.number);
      continue;
    }
    Difference difference;
    difference.step = side.step.number;
    difference.name = assembled.tensor.name;
    difference.kind = name_of(fault.kind);
    difference.side = side.name;
    difference.sentence = "in " + name + " by itself, " + fault.sentence;
    difference.count = fault.count;
    difference.elements = assembled.tensor.elements;
    (side.name == 'A' ? difference.ranks_a : difference.ranks_b) = fault.ranks;
    if (fault.element >= 0) {
      difference.element = fault.element;
      difference.index = dump::index_of(fault.element, assembled.tensor.shape);
    }
    if (fault.kind == Fault::Kind::replicas_differ)
      difference.hint =
          "ranks that should hold the same do not: a reduction that is missing or that one rank is not in, or random "
          "numbers that differ among them";
    if (fault.kind == Fault::Kind::gap)
      difference.hint = "shards that were never written, or shard bounds that do not meet";
    if (fault.kind == Fault::Kind::overlap)
      difference.hint = "shard bounds that overlap, or copies that should be marked as replica";
    session.add(std::move(difference));
  }
  return assembled.usable();
}

// Of the same parameter, in A.
std::string gradient_hint(const StepSide& a, const std::string& name, const Place& place) {
  const std::string category = category_of(name);
  if (category != "param" && category != "master") return "";
  const std::string gradient = "grad" + name.substr(category.size());
  const std::vector<dump::Shard>* const shards = shards_of(a, gradient);
  if (shards == nullptr) return "";
  const Assembled assembled = assemble(gradient, *shards);
  if (!assembled.faults.empty() || assembled.tensor.shape.size() != place.box.size()) return "";
  return zero_gradient_hint(assembled.tensor, place);
}

Difference value_difference(Session& session, const StepSide& side_a, const Assembled& a, const Assembled& b,
                            const std::vector<dump::Shard>& shards_b, const Values& values,
                            const Tolerance& tolerance) {
  Difference difference;
  difference.step = side_a.step.number;
  difference.name = a.tensor.name;
  difference.kind = values.nan_a + values.nan_b > 0 ? "nan" : "value";
  difference.values = values;
  difference.tolerance = tolerance;
  difference.elements = a.tensor.elements;
  if (session.out.differences.size() >= kMostLocated) return difference;
  const Place place = find_place(a.tensor, b.tensor, values, tolerance);
  difference.count = place.count;
  difference.box = place.box;
  difference.ranks_a.assign(place.ranks_a.begin(), place.ranks_a.end());
  difference.ranks_b.assign(place.ranks_b.begin(), place.ranks_b.end());
  if (place.first >= 0) {
    difference.element = place.first;
    difference.index = dump::index_of(place.first, a.tensor.shape);
    difference.value_a = value_text(a.tensor, place.first);
    difference.value_b = value_text(b.tensor, place.first);
  }
  if (difference.kind == "value") difference.hint = gradient_hint(side_a, difference.name, place);
  if (difference.hint.empty())
    difference.hint = tensor_hint(a.tensor, b.tensor, shards_b, values, place, session.worlds);
  return difference;
}

// Shapes and types that cannot be compared; false: they can.
bool note_mismatch(Session& session, const GlobalTensor& a, const GlobalTensor& b, int64_t step) {
  Difference difference;
  difference.step = step;
  difference.name = a.name;
  if (a.shape != b.shape) {
    difference.kind = "shape";
    difference.sentence = "its shape is " + dump::shape_text(a.shape) + " in A, " + dump::shape_text(b.shape) + " in B";
    if (a.elements == b.elements)
      difference.hint = "the same number of elements: a tensor that is flattened, transposed or reshaped on one side";
    else if (a.shape.size() == b.shape.size())
      difference.hint =
          "padding (of the vocabulary, say) that was not left out, or a shard that was dumped without its placement";
  } else if (dump::is_float(a.dtype) != dump::is_float(b.dtype)) {
    difference.kind = "dtype";
    difference.sentence =
        std::string("its dtype is ") + dump::name_of(a.dtype) + " in A, " + dump::name_of(b.dtype) + " in B";
  } else {
    return false;
  }
  session.add(std::move(difference));
  return true;
}

}  // namespace

bool names_are_others(const StepSide& a, const StepSide& b, const std::string& category) {
  const std::vector<std::string> left = names_in(a, category);
  const auto shared = [&](const std::string& name) { return shards_of(b, name) != nullptr; };
  return a.step.missing_ranks.empty() && b.step.missing_ranks.empty() && !left.empty() && b.has_category(category) &&
         std::none_of(left.begin(), left.end(), shared);
}

void note_other_names(Session& session, const StepSide& a, const StepSide& b, const std::string& category) {
  const auto some = [&](const StepSide& side) {
    const std::vector<std::string> names = names_in(side, category);
    return names[0] + (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more" : "");
  };
  Difference difference;
  difference.step = a.step.number;
  difference.name = category + "/";
  difference.kind = "missing";
  difference.sentence = "A and B have no name in common: A has " + some(a) + ", B " + some(b);
  difference.hint =
      "two ways to name one model's parameters: let both sides dump the same names (the bundled trainer's are those of "
      "a nanoGPT state dict)";
  session.add(std::move(difference));
}

ComparedTensor compare_tensor(Session& session, const StepSide& a, const StepSide& b, const std::string& name) {
  const std::vector<dump::Shard>* const shards_a = shards_of(a, name);
  const std::vector<dump::Shard>* const shards_b = shards_of(b, name);
  const int64_t step = a.step.number;
  if (!shards_a || !shards_b) {
    note_missing(session, shards_a ? a : b, shards_a ? b : a, name);
    return {};
  }
  const AssemblyOptions assembly{session.options.sum_partials};
  const Assembled left = assemble(name, *shards_a, assembly), right = assemble(name, *shards_b, assembly);
  const bool left_sound = note_faults(session, a, left);
  if (!note_faults(session, b, right) || !left_sound) return {};
  if (note_mismatch(session, left.tensor, right.tensor, step)) return {};

  const Dtype dtype = coarser(left.tensor.dtype, right.tensor.dtype);
  if (left.tensor.dtype != right.tensor.dtype)
    session.dtypes[{dump::name_of(left.tensor.dtype), dump::name_of(right.tensor.dtype)}].insert(name);
  const Tolerance tolerance = session.tolerance(dtype);
  const Values values = compare_values(left.tensor, right.tensor, tolerance);
  Summary& summary = session.summary(name);
  session.out.steps.insert(step);
  if (values.outcome == Outcome::bitwise) summary.bitwise++;
  if (values.outcome == Outcome::within) {
    summary.within++;
    if (values.relative >= summary.worst) summary.worst = values.relative, summary.worst_name = name;
  }
  if (values.outcome == Outcome::different)
    session.add(value_difference(session, a, left, right, *shards_b, values, tolerance));
  return {true, left.tensor.dtype, left.tensor.elements};
}

}  // namespace lockstep::verify
