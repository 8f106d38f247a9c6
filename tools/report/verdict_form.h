// SPDX-License-Identifier: MIT
//
// Does the JSON of a verdict keep to docs/diagnose-schema.json, the schema that the docs promise? It is built in, so
// that every scene that is played is held to it.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

std::string_view verdict_schema();

// What is wrong with it, a sentence each.
std::vector<std::string> form_complaints(const std::string& verdict_json);

}  // namespace lockstep
