// SPDX-License-Identifier: MIT

#include "reference/train/parallel/units.h"

#include <algorithm>
#include <cstdlib>

namespace train {
namespace {

constexpr const char* kRoot = "root";

// "h.3.attn" belongs to layer "h.3"; other modules belong to none.
std::string layer_of(const std::string& module) {
  if (module.rfind("h.", 0) != 0) return "";
  return module.substr(0, module.find('.', 2));
}

// The unit that each module asks for, by name.
std::vector<std::string> names_of(const Setup& setup, const std::string& wrap) {
  std::vector<std::string> names(setup.modules.size(), kRoot);
  const auto wrapped = [&](size_t m) { return !layer_of(setup.modules[m]->name()).empty(); };
  if (wrap.rfind("size:", 0) == 0) {
    const int64_t wanted = std::strtoll(wrap.c_str() + 5, nullptr, 10);
    int64_t count = 0;
    std::vector<size_t> members;
    for (size_t m = 0; m < names.size(); ++m) {
      if (!wrapped(m)) continue;
      members.push_back(m);
      for (const Parameter* p : setup.modules[m]->parameters()) count += p->count;
      if (count < wanted) continue;
      for (const size_t member : members) names[member] = setup.modules[members.front()]->name() + "...";
      members.clear();
      count = 0;
    }
    return names;
  }
  for (size_t m = 0; m < names.size(); ++m)
    if (wrapped(m) && wrap != "none")
      names[m] = wrap == "layer" ? setup.modules[m]->name() : layer_of(setup.modules[m]->name());
  return names;
}

int unit_named(Units& all, const std::string& name, bool frozen) {
  const std::string full = frozen ? name + " (frozen)" : name;
  for (size_t i = 0; i < all.units.size(); ++i)
    if (all.units[i].name == full) return static_cast<int>(i);
  all.units.push_back({full, {}, name == kRoot, frozen});
  return static_cast<int>(all.units.size()) - 1;
}

}  // namespace

UseMap uses_of(const Setup& setup) {
  UseMap uses;
  for (const Parameter* p : setup.parameters) uses[p] = {};
  for (size_t m = 0; m < setup.modules.size(); ++m)
    for (const Parameter* p : setup.modules[m]->parameters()) {
      const auto found = uses.find(p);
      if (found == uses.end()) continue;
      if (found->second.first < 0) found->second.first = static_cast<int>(m);
      found->second.last = static_cast<int>(m);
    }
  return uses;
}

Units make_units(const Setup& setup, const std::string& wrap) {
  Units all;
  all.of_module.resize(setup.modules.size());
  const std::vector<std::string> names = names_of(setup, wrap);
  std::map<const Parameter*, int> unit_of;
  for (size_t m = 0; m < setup.modules.size(); ++m)
    for (Parameter* p : setup.modules[m]->parameters()) {
      if (std::find(setup.parameters.begin(), setup.parameters.end(), p) == setup.parameters.end()) continue;
      auto found = unit_of.find(p);
      if (found == unit_of.end()) {  // a parameter used twice belongs to the unit of its first use
        found = unit_of.emplace(p, unit_named(all, names[m], p->frozen)).first;
        all.units[static_cast<size_t>(found->second)].parameters.push_back(p);
      }
      std::vector<int>& needs = all.of_module[m];
      if (std::find(needs.begin(), needs.end(), found->second) == needs.end()) needs.push_back(found->second);
    }
  return all;
}

}  // namespace train
