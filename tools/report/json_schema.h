// SPDX-License-Identifier: MIT
//
// The part of JSON Schema that our schema uses: type, enum, required, properties, additionalProperties, items, minimum
// and $ref into its own definitions. An unknown keyword is a complaint, so that the schema cannot say what nobody
// checks.

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep {

std::vector<std::string> check_schema(const nlohmann::json& document, const nlohmann::json& schema);

}  // namespace lockstep
