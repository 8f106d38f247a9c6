// SPDX-License-Identifier: MIT
//
// No harm to what a job is for: a training computes the same bits with the shim as without it, whatever is switched on.

#include <map>

#include "tests/interpose/no_harm.h"

namespace lockstep {
namespace {

class Training : public NoHarm {
 protected:
  // Gradients, parameters and moments of every step, by file; the metrics beside them hold times.
  std::map<std::string, std::string> dumps_of(const std::string& name, Environment environment) {
    const std::string folder = folder_.path() + "/" + name;
    environment["LOCKSTEP_DIR"] = folder_.path() + "/traces-" + name;
    const Outcome outcome = run({TRAIN_PROGRAM, "--dp", "2", "--tp", "2", "--zero", "1", "--layers", "1", "--accum",
                                 "2", "--steps", "2", "--dump", folder},
                                environment, 120);
    EXPECT_TRUE(outcome.exited_with(0)) << outcome.err;
    EXPECT_EQ(outcome.err.find("lockstep"), std::string::npos) << outcome.err;
    std::map<std::string, std::string> out;
    std::error_code none;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, none))
      if (entry.is_regular_file() && entry.path().filename() != "metrics.jsonl")
        out[std::filesystem::relative(entry.path(), folder)] = trace::slurp(entry.path());
    return out;
  }
  std::string first_trace(const std::string& name) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/traces-" + name))
      if (entry.path().extension() == trace::kFileSuffix) return entry.path();
    return "";
  }
};

TEST_F(Training, ComputesTheSameBits) {
  const auto plain = dumps_of("plain", {{"LD_PRELOAD", ""}});
  ASSERT_GT(plain.size(), 3u);
  const std::pair<const char*, Environment> settings[] = {
      {"default", {}},
      {"all_on", {{"LOCKSTEP_DIGEST", "1"}, {"LOCKSTEP_MODE", "full"}}},
      {"small", {{"LOCKSTEP_RING_MB", "1"}, {"LOCKSTEP_STATES", "0"}, {"LOCKSTEP_CLOCK", "monotonic"}}},
  };
  for (const auto& [name, setting] : settings) {
    Environment environment = setting;
    environment["LD_PRELOAD"] = shim_;
    const auto traced = dumps_of(name, environment);
    EXPECT_EQ(traced.size(), plain.size()) << name;
    for (const auto& [file, bytes] : plain) {
      const auto same = traced.find(file);
      ASSERT_NE(same, traced.end()) << name << " has no " << file;
      EXPECT_TRUE(same->second == bytes) << name << " computed another " << file;
    }
    const Result<trace::TraceFile> trace = trace::read_trace(first_trace(name));
    ASSERT_TRUE(trace) << trace.error();
    EXPECT_GT(trace->calls.size(), 40u) << name << " was not recorded";
  }
}

}  // namespace
}  // namespace lockstep
