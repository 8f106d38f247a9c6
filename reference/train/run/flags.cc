// SPDX-License-Identifier: MIT

#include "reference/train/run/flags.h"

#include <cmath>
#include <cstdlib>
#include <set>

namespace train {

double read_real(const char* flag, const std::string& word, const Real& kind) {
  char* stop = nullptr;
  const double value = std::strtod(word.c_str(), &stop);
  if (word.empty() || *stop != '\0' || !std::isfinite(value) || !kind.fits(value))
    refuse(flag, " is ", word, ", but must be ", kind.must);
  return value;
}

CLI::Option* add_real(CLI::App& app, const char* flag, double& value, const char* text, const Real& kind) {
  const auto read = [flag, kind, &value](const std::string& word) { value = read_real(flag, word, kind); };
  return app.add_option_function<std::string>(flag, read, text)->type_name("FLOAT");
}

CLI::Option* add_choice(CLI::App& app, const char* flag, std::string& value, const char* text,
                        std::initializer_list<const char*> names) {
  Choices<std::string> choices;
  for (const char* name : names) choices.emplace_back(name, name);
  return add_choice<std::string>(app, flag, value, text, choices);
}

CLI::Option* add_path(CLI::App& app, const char* flag, std::string& value, const char* text, const char* what) {
  const auto read = [flag, what, &value](const std::string& word) {
    if (word.empty()) refuse(flag, " names no ", what);
    value = word;
  };
  return app.add_option_function<std::string>(flag, read, text);
}

void check_once(const CLI::App& app, int argc, char** argv) {
  std::set<std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], flag = word.substr(0, word.find('='));
    if (flag.rfind("--", 0) != 0) continue;
    const CLI::Option* option = app.get_option_no_throw(flag);
    if (option != nullptr && word == flag + '=') refuse(word, " has no value");
    if (option == nullptr || option->get_items_expected_min() == 0 ||
        option->get_items_expected_max() >= CLI::detail::expected_max_vector_size)
      continue;
    if (!given.insert(flag).second) refuse(flag, " is given twice");
  }
}

}  // namespace train
