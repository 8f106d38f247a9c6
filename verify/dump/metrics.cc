// SPDX-License-Identifier: MIT

#include "verify/dump/metrics.h"

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::dump {
namespace {

using nlohmann::json;

constexpr std::string_view kNoNumbers[] = {"NaN", "-Infinity", "Infinity"};

// JSON has no word for these, so we write them as texts; Python's json module writes them bare.
nlohmann::ordered_json number_json(const std::optional<double>& value) {
  if (!value) return nullptr;
  if (std::isnan(*value)) return kNoNumbers[0];
  if (std::isinf(*value)) return kNoNumbers[*value > 0 ? 2 : 1];
  return *value;
}

std::string with_bare_words_quoted(const std::string& line) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < line.size(); i++) {
    if (inside && line[i] == '\\' && i + 1 < line.size()) {
      out += line[i++];
    } else if (line[i] == '"') {
      inside = !inside;
    } else if (!inside) {
      bool quoted = false;
      for (const std::string_view word : kNoNumbers) {
        if (quoted || line.compare(i, word.size(), word) != 0) continue;
        out += '"' + std::string(word) + '"';
        i += word.size() - 1;
        quoted = true;
      }
      if (quoted) continue;
    }
    out += line[i];
  }
  return out;
}

bool read_number(const json& line, const char* key, std::optional<double>& out) {
  if (!line.contains(key) || line[key].is_null()) return true;
  const json& value = line[key];
  if (value.is_number()) {
    out = value.get<double>();
    return true;
  }
  if (value == kNoNumbers[0]) out = std::numeric_limits<double>::quiet_NaN();
  if (value == kNoNumbers[1]) out = -std::numeric_limits<double>::infinity();
  if (value == kNoNumbers[2]) out = std::numeric_limits<double>::infinity();
  return out.has_value();
}

bool whole_number(const json& line, const char* key) {
  return line.contains(key) && line[key].is_number_integer() && line[key].get<int64_t>() >= 0;
}

std::optional<Metrics> read_line(const std::string& text, std::string& fault) {
  const json line = json::parse(with_bare_words_quoted(text), nullptr, false);
  Metrics metrics;
  if (!line.is_object()) {
    fault = "expected a JSON object";
  } else if (!whole_number(line, "step") || !whole_number(line, "rank") ||
             line["rank"].get<int64_t>() > std::numeric_limits<int>::max()) {
    fault = "expected \"step\" and \"rank\", whole numbers from 0 on";
  } else if (line.contains("tokens") && !line["tokens"].is_null() && !line["tokens"].is_number_integer()) {
    fault = "\"tokens\" is not a whole number";
  } else {
    metrics.step = line["step"].get<int64_t>();
    metrics.rank = line["rank"].get<int>();
    if (line.contains("tokens") && !line["tokens"].is_null()) metrics.tokens = line["tokens"].get<int64_t>();
    for (const auto& [key, out] : {std::pair{"loss", &metrics.loss},
                                   {"norm", &metrics.norm},
                                   {"lr", &metrics.lr},
                                   {"loss_scale", &metrics.loss_scale}})
      if (!read_number(line, key, *out)) fault = std::string("\"") + key + "\" is not a number";
  }
  return fault.empty() ? std::optional(metrics) : std::nullopt;
}

}  // namespace

std::string metrics_line(const Metrics& metrics) {
  const nlohmann::ordered_json line = {{"step", metrics.step},
                                       {"rank", metrics.rank},
                                       {"loss", number_json(metrics.loss)},
                                       {"tokens", metrics.tokens ? nlohmann::ordered_json(*metrics.tokens) : nullptr},
                                       {"norm", number_json(metrics.norm)},
                                       {"lr", number_json(metrics.lr)},
                                       {"loss_scale", number_json(metrics.loss_scale)}};
  return line.dump() + "\n";
}

Result<std::vector<Metrics>> read_metrics(const std::string& path, const std::string& text,
                                          std::vector<std::string>& notes, std::vector<std::string>& missing) {
  std::map<std::pair<int64_t, int>, Metrics> lines;
  size_t again = 0;
  for (size_t begin = 0, number = 1; begin < text.size(); number++) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path + ": line " + std::to_string(number);
    std::string fault;
    const std::optional<Metrics> metrics = read_line(line, fault);
    const bool ended = end < text.size(), closed = line.find_last_of('}') != std::string::npos;
    if (!metrics && !ended && !closed) {
      missing.push_back(where + " is cut off: its writer was killed, and what it said of its step is not known");
      continue;
    }
    if (!metrics)
      return Error{where + ": " + fault +
                   "; a line is {\"step\": 1, \"rank\": 0, \"loss\": 5.5, ...}; remove it if its " +
                   "writer was killed"};
    if (!ended) notes.push_back(where + " has no end of line, and counts, for nothing of it is missing");
    again += !lines.insert_or_assign({metrics->step, metrics->rank}, *metrics).second;
  }
  if (again)
    notes.push_back(
        path + ": " + std::to_string(again) +
        " lines were replaced by later ones of the same step and rank; a restart, or several runs in one folder");
  std::vector<Metrics> all;
  for (const auto& [key, metrics] : lines) all.push_back(metrics);
  return all;
}

}  // namespace lockstep::dump
