// SPDX-License-Identifier: MIT
//
// See fault_setting.h.

#include "reference/nccl/fault_setting.h"

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "interpose/abi/nccl.h"
#include "reference/nccl/settings.h"

namespace lockstep::nccl {
namespace {

using Action = Fault::Action;

struct Known {
  const char* name;
  Action action;
  const char* needs;  // the key it cannot do without
};
constexpr Known kActions[] = {{"skip", Action::skip, ""},        {"delay", Action::delay, "seconds"},
                              {"reorder", Action::reorder, ""},  {"count", Action::count, "value"},
                              {"dtype", Action::dtype, "value"}, {"root", Action::root, "value"},
                              {"op", Action::op, "value"},       {"corrupt", Action::corrupt, "element"},
                              {"fail", Action::fail, "code"},    {"kill", Action::kill, ""},
                              {"stop", Action::stop, ""}};

// Seconds. More of them overflow what a sleep can be told, which then sleeps not at all.
constexpr double kLongestDelay = 1e9;

std::optional<int64_t> number(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || errno == ERANGE) return std::nullopt;
  return value;
}

// A number, or what `name_of` calls one of the first `count`.
template <class NameOf>
std::optional<int64_t> named(const std::string& text, int count, NameOf name_of) {
  for (int i = 0; i < count; ++i)
    if (text == name_of(i)) return i;
  return number(text);
}

std::string divide(std::string& rest, char at) {
  const size_t end = rest.find(at);
  std::string first = rest.substr(0, end);
  rest = end == std::string::npos ? "" : rest.substr(end + 1);
  return first;
}

// One fault; the answer is what is wrong with it, or nothing.
class Reader {
 public:
  explicit Reader(Fault& fault) : fault_(fault) {}

  std::string read(std::string text) {
    const std::string action = divide(text, ':');
    const Known* known = nullptr;
    for (const Known& each : kActions)
      if (action == each.name) known = &each;
    if (known == nullptr) return "'" + action + "' is no action; expected one of" + all_actions();
    fault_.action = known->action;
    needed_ = known->needs;
    while (!text.empty()) {
      std::string value = divide(text, ',');
      const std::string key = divide(value, '=');
      if (!set(key, value))
        return "'" + key + "=" + value + "' is not understood by " + action + "; see docs/host-runtime.md";
    }
    if (fault_.rank < 0) return "rank=R is missing, the rank that makes the mistake";
    if (fault_.call == 0) return "call=N is missing, which of its calls (from 1)";
    if (!needed_.empty()) return needed_ + "=... is missing, which " + action + " needs";
    return "";
  }

 private:
  static std::string all_actions() {
    std::string all;
    for (const Known& each : kActions) all += std::string(" ") + each.name;
    return all;
  }
  bool set(const std::string& key, const std::string& value) {
    if (key == "rank") return take(number(value), fault_.rank);
    if (key == "fn") return set_function(value);
    if (key == "call") {
      const auto n = number(value);
      if (n && *n > 0) fault_.call = static_cast<uint64_t>(*n);
      return fault_.call != 0;
    }
    if (key == "bit" && fault_.action == Action::corrupt) {
      const auto n = number(value);
      if (n && *n >= 0 && *n < 64) fault_.bit = static_cast<int>(*n);
      return fault_.bit >= 0;
    }
    if (needed_.empty() || key != needed_) return false;
    needed_.clear();
    if (fault_.action == Action::delay) return set_seconds(value);
    return take(in_words(value), fault_.value);
  }
  std::optional<int64_t> in_words(const std::string& value) const {
    switch (fault_.action) {
      case Action::dtype:
        return named(value, ncclNumTypes, abi::dtype_name);
      case Action::op:
        return named(value, ncclNumOps, abi::redop_name);
      case Action::fail:
        return named(value, ncclNumResults, abi::result_name);
      default:
        return number(value);
    }
  }
  static bool take(std::optional<int64_t> value, int64_t& into) {
    if (value) into = *value;
    return value && *value >= 0;
  }
  bool set_seconds(const std::string& value) {
    char* end = nullptr;
    fault_.seconds = std::strtod(value.c_str(), &end);
    return !value.empty() && *end == '\0' && fault_.seconds >= 0 && fault_.seconds <= kLongestDelay;
  }
  bool set_function(const std::string& value) {
    const abi::FunctionInfo* const info = abi::find_function(std::string_view(value));
    if (info == nullptr || (info->kind != abi::FunctionKind::collective && info->kind != abi::FunctionKind::p2p))
      return false;
    fault_.fn = info->fn;
    return true;
  }

  Fault& fault_;
  std::string needed_;
};

}  // namespace

void read_faults(const std::string& text, FaultSetting& setting) {
  for (std::string rest = text; !rest.empty() && setting.wrong.empty();) {
    const std::string one = divide(rest, ';');
    if (one.empty()) continue;
    const std::string wrong = Reader(setting.faults.emplace_back()).read(one);
    if (!wrong.empty()) setting.wrong = "LOCKSTEP_HOST_FAULT: in '" + one + "': " + wrong;
  }
}

FaultSetting& fault_setting() {
  static FaultSetting* const the_one = [] {  // never destroyed: threads may run while the process exits
    auto* made = new FaultSetting;
    if (const char* text = setting("LOCKSTEP_HOST_FAULT")) read_faults(text, *made);
    return made;
  }();
  return *the_one;
}

}  // namespace lockstep::nccl
