// SPDX-License-Identifier: MIT
#include "tools/report/json_schema.h"

#include <algorithm>
#include <set>

namespace lockstep {
namespace {

using nlohmann::json;

bool has_type(const json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

struct Checker {
  const json& root;
  std::vector<std::string> complaints;

  void complain(const std::string& place, const std::string& what) {
    complaints.push_back((place.empty() ? "/" : place) + ": " + what);
  }

  void check(const json& value, const json& schema, const std::string& place) {
    static const std::set<std::string> known = {"$schema", "$id",     "title",    "description", "definitions",
                                                "type",    "enum",    "required", "properties",  "additionalProperties",
                                                "items",   "minimum", "$ref"};
    for (const auto& [keyword, content] : schema.items())
      if (!known.count(keyword))
        complain(place, "the schema uses \"" + keyword + "\", which this checker does not know");
    if (schema.contains("$ref")) {
      const std::string name = schema["$ref"].get<std::string>().substr(std::string("#/definitions/").size());
      return check(value, root["definitions"].at(name), place);
    }
    check_type(value, schema, place);
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
      complain(place, value.dump() + " is none of " + schema["enum"].dump());
    if (schema.contains("minimum") && value.is_number() && value.get<double>() < schema["minimum"].get<double>())
      complain(place, value.dump() + " is too small");
    if (value.is_object()) check_object(value, schema, place);
    if (value.is_array() && schema.contains("items"))
      for (size_t i = 0; i < value.size(); i++) check(value[i], schema["items"], place + "/" + std::to_string(i));
  }

  void check_type(const json& value, const json& schema, const std::string& place) {
    if (!schema.contains("type")) return;
    const json types = schema["type"].is_array() ? schema["type"] : json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), [&](const json& type) { return has_type(value, type); }))
      complain(place, value.dump().substr(0, 60) + " is not of type " + schema["type"].dump());
  }

  void check_object(const json& value, const json& schema, const std::string& place) {
    for (const json& name : schema.value("required", json::array()))
      if (!value.contains(name.get<std::string>())) complain(place, "lacks " + name.dump());
    const json properties = schema.value("properties", json::object());
    for (const auto& [name, content] : value.items()) {
      if (properties.contains(name)) {
        check(content, properties[name], place + "/" + name);
      } else if (schema.contains("additionalProperties")) {
        const json& more = schema["additionalProperties"];
        if (more.is_boolean() && !more.get<bool>()) complain(place, "has an unknown key \"" + name + "\"");
        if (more.is_object()) check(content, more, place + "/" + name);
      }
    }
  }
};

}  // namespace

std::vector<std::string> check_schema(const json& document, const json& schema) {
  Checker checker{schema, {}};
  checker.check(document, schema, "");
  return checker.complaints;
}

}  // namespace lockstep
