// SPDX-License-Identifier: MIT
//
// The first screen of README.md is what the demo prints, but for names, numbers of processes, times, and the frames of
// the C library; also where hanging is a matter of one second.

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/demo/process.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

// What differs from run to run and from machine to machine is made the same.
std::string levelled(std::string line) {
  static const std::pair<std::regex, const char*> kinds[] = {
      {std::regex("host [^,]+, pid [0-9]+"), "host H, pid P"},
      {std::regex("[0-9]+(\\.[0-9]+)? m?s\\b"), "D"},
      {std::regex("[0-9]{2}:[0-9]{2}:[0-9]{2}"), "T"},
      {std::regex("^(  [0-9]+ +)[^ :]+:[0-9]+ "), "$1H:P "},
      {std::regex("  +"), "  "},
  };
  for (const auto& [what, with] : kinds) line = std::regex_replace(line, what, with);
  return line;
}

bool is_frame_of_a_library(const std::string& line) {
  return line.rfind("    ", 0) == 0 && line.find("demo::") == std::string::npos &&
         line.find("main (") == std::string::npos;
}

Lines lines_of(std::istream& in) {
  Lines lines;
  for (std::string line; std::getline(in, line);)
    if (!is_frame_of_a_library(line)) lines.push_back(levelled(line));
  return lines;
}

// The block of the page that begins with the verdict.
Lines readme() {
  std::ifstream in(README_PAGE);
  std::stringstream block;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (inside && line == "```") break;
    if (line.rfind("lockstep: hung: ", 0) == 0) inside = true;
    if (inside) block << line << '\n';
  }
  return lines_of(block);
}

// The last lines of stderr from the verdict to where it can be seen again.
Lines printed(const std::string& err) {
  const size_t begin = err.find("lockstep: hung: "), end = err.find("lockstep: to see it again");
  if (begin == std::string::npos || end == std::string::npos) return {};
  std::istringstream block(err.substr(begin, end - begin));
  return lines_of(block);
}

std::string joined(Lines::const_iterator begin, Lines::const_iterator end) {
  std::string text;
  for (; begin != end; ++begin) text += *begin + "\n";
  return text;
}

TEST(DemoText, IsTheFirstScreenOfTheReadme) {
  const Lines page = readme();
  const auto cut = std::find(page.begin(), page.end(), "  ...");
  ASSERT_NE(cut, page.end());
  const TemporaryFolder folder;
  const Outcome outcome = run_program({LOCKSTEP_CLI, "run", "--host", "--dir", folder.path("traces"), "--hang-seconds",
                                       "1", "--kill-on-hang", "--", LOCKSTEP_DEMO},
                                      60s);
  const Lines text = printed(outcome.err);
  const auto before = cut - page.begin(), after = page.end() - cut - 1;
  ASSERT_GT(static_cast<std::ptrdiff_t>(text.size()), before + after) << outcome.err;
  EXPECT_EQ(joined(text.begin(), text.begin() + before), joined(page.begin(), cut));
  EXPECT_EQ(joined(text.end() - after, text.end()), joined(cut + 1, page.end()));
}

}  // namespace
}  // namespace lockstep::test
