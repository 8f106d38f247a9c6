// SPDX-License-Identifier: MIT
//
// Feeds the scenario parser anything: it must answer with a scenario or with one sentence that names the file, and
// never show raw bytes of a file that is no text. The scenes of tests/hangs are the corpus.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "tools/scenario/scenario.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto result = lockstep::scenario::parse_scenario("x.hang", text);
  if (result) return 0;
  if (result.error().find("x.hang") == std::string::npos) abort();
  for (const unsigned char c : result.error())
    if (c < ' ' && c != '\t') abort();
  return 0;
}
