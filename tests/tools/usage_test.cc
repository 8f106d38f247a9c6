// SPDX-License-Identifier: MIT
//
// What a person gets who has given a command the wrong thing: exit status 2, nothing on stdout, and one sentence that
// names the file, says what is wrong, and what was expected or is to be done.

#include <gtest/gtest.h>
#include <string.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "interpose/trace/writer.h"
#include "tests/demo/process.h"
#include "tests/interpose/trace_fixture.h"
#include "tools/explain/findings_page.h"
#include "tools/judge/finding.h"

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

class Usage : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  // The head of a sound trace, with a few bytes changed.
  std::string trace_with(const std::string& name, size_t offset, const std::string& bytes, size_t length = 8192) {
    trace::Trace trace = {};
    fs::create_directories(path(name + ".made"));
    EXPECT_EQ(trace::create(trace, path(name + ".made").c_str(), trace::test_header(), trace::clocks_now(),
                            trace::clocks_now, trace::kSegmentBytes)
                  .what,
              nullptr);
    trace::unmap(trace);
    fs::path made;
    for (const auto& entry : fs::directory_iterator(path(name + ".made"))) made = entry.path();
    std::ifstream in(made, std::ios::binary);
    std::string head(length, '\0');
    in.read(head.data(), static_cast<std::streamsize>(length));
    head.replace(offset, bytes.size(), bytes);
    return write(name, head);
  }

  static Outcome lockstep(Words words) {
    words.insert(words.begin(), LOCKSTEP_CLI);
    return run_program(words, 20s);
  }
  static void expect_refused(const Words& words, const Words& said) { expect_sentence(lockstep(words), said); }
  static void expect_sentence(const Outcome& outcome, const Words& said) {
    SCOPED_TRACE(outcome.err);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1);
    for (const std::string& piece : said) EXPECT_NE(outcome.err.find(piece), std::string::npos) << piece;
  }
  trace::TempFolder folder_;
};

TEST_F(Usage, ShowNamesTheFileAndWhatItExpected) {
  const size_t major = offsetof(trace::FileHeader, version_major), order = offsetof(trace::FileHeader, byte_order);
  const uint64_t swapped = __builtin_bswap64(trace::kByteOrderMark);
  fs::create_directories(path("folder"));
  const std::pair<std::string, Words> cases[] = {
      {path("nowhere.lstrace"), {"cannot be read", "No such file"}},
      {path("folder"), {"is a folder", "lockstep diagnose"}},
      {write("empty.lstrace", ""), {"is empty", "expected a Lockstep trace"}},
      {write("letter.lstrace", "this is a letter to my aunt"), {"not a Lockstep trace", "\"LSTRACE\""}},
      {trace_with("cut.lstrace", 0, "", 100), {"cut off inside its header", "100 bytes", "copy the file again"}},
      {trace_with("newer.lstrace", major, std::string("\x63\0", 2)),
       {"trace format 99", "this lockstep reads formats"}},
      {trace_with("other.lstrace", order, {reinterpret_cast<const char*>(&swapped), 8}), {"other byte order"}},
      {trace_with("damaged.lstrace", order, std::string(8, '\x7f')), {"header is damaged", "copy the file again"}},
      {path("nowhere.safetensors"), {"No such file"}},
      {write("short.safetensors", "abc"), {"byte 3", "truncated", "expected at least 8 bytes"}},
      {write("wrong.safetensors", std::string("\2\0\0\0\0\0\0\0[]", 10)), {"byte 8", "expected the header"}},
  };
  for (const auto& [file, said] : cases) {
    Words all = said;
    all.push_back("lockstep show: " + file + ": ");
    expect_refused({"show", file}, all);
    expect_refused({"show", "--json", file}, all);
  }
}

TEST_F(Usage, ShowEscapesNamesInItsSentences) {
  const Outcome outcome = lockstep({"show", path("a\x1b[2Jb.lstrace")});
  expect_sentence(outcome, {"a\\x1b[2Jb.lstrace"});
  EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos);
}

TEST_F(Usage, ShowIsToldHowMany) {
  const std::string file = write("letter.lstrace", "x");
  expect_refused({"show", file, "--calls", "many"}, {"--calls", "expected a whole number", "\"many\""});
  expect_refused({"show", file, "--calls", "1e3"}, {"--calls", "expected a whole number", "\"1e3\""});
  expect_refused({"show", file, "--calls", "-1"}, {"--calls", "expected a whole number", "\"-1\""});
  expect_refused({"show"}, {"FILE", "required"});
  expect_refused({"show", file, "--debug-dir", path("nowhere")}, {"--debug-dir", "nowhere"});
}

TEST_F(Usage, RunNamesTheProgramOrTheFolder) {
  const std::string traces = path("traces"), file = write("file", "x"),
                    garbage = write("garbage",
                                    "\x7f"
                                    "garbage");
  chmod(garbage.c_str(), 0755);
  const std::pair<Words, Words> cases[] = {
      {{}, {"no program given", "lockstep run -- python train.py"}},
      {{"--"}, {"no program given"}},
      {{"--", "no-such-program"}, {"no-such-program: ", "no such program", "may not be executed"}},
      {{"--", path("nowhere/train")}, {path("nowhere/train") + ": ", "no such program"}},
      {{"--", file}, {file + ": ", "may not be executed"}},
      {{"--", folder_.path()}, {folder_.path() + ": ", "may not be executed"}},
      {{"--dir", traces, "--", garbage}, {garbage + ": ", "cannot be started", "Exec format error"}},
      {{"--dir", file, "--", "true"}, {file + ": ", "cannot make this folder", "name another with --dir"}},
      {{"--dir", file + "/below", "--", "true"}, {file + "/below: ", "cannot make this folder", "--dir"}},
      {{"--dir", "/proc/lockstep", "--", "true"}, {"/proc/lockstep: ", "cannot make this folder", "--dir"}},
      {{"--dir", "/proc/self", "--", "true"}, {"/proc/", "cannot write into this folder", "--dir"}},
      {{"--hang-seconds", "soon", "--", "true"}, {"--hang-seconds", "expected a number of seconds", "\"soon\""}},
      {{"--hang-seconds", "0", "--", "true"}, {"--hang-seconds", "from 0.001 to 31536000", "\"0\""}},
      {{"--hang-seconds", "nan", "--", "true"}, {"--hang-seconds", "expected a number of seconds", "\"nan\""}},
  };
  for (const auto& [words, said] : cases) {
    Words command{"run"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome outcome = lockstep(command);
    SCOPED_TRACE(outcome.err);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    const size_t last =
        outcome.err.rfind('\n', outcome.err.size() - 2);  // where the traces go may have been said before
    const std::string sentence = outcome.err.substr(last == std::string::npos ? 0 : last + 1);
    for (const std::string& piece : said) EXPECT_NE(sentence.find(piece), std::string::npos) << piece;
  }
}

// Lockstep itself is incomplete, or where the loader cannot find it.
TEST_F(Usage, RunSaysWhatIsMissingOfLockstep) {
  const auto run_in = [&](const std::string& name, bool shim, const Words& options) {
    const std::string cli = path(name) + "/bin/lockstep";
    fs::create_directories(path(name) + "/bin");
    fs::create_directories(path(name) + "/lib");
    fs::copy_file(LOCKSTEP_CLI, cli, fs::copy_options::overwrite_existing);
    if (shim) write(name + "/lib/liblockstep.so", "");
    Words command{cli, "run", "--dir", path("traces")};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", "true"});
    return run_program(command, 20s);
  };
  const std::string library = fs::canonical(folder_.path()).string();
  expect_sentence(run_in("bare", false, {}),
                  {library + "/bare/lib/liblockstep.so: the shim was expected there", "build or install Lockstep"});
  expect_sentence(run_in("half", true, {"--host"}),
                  {library + "/half/lib/lockstep/host/libnccl.so.2: the host runtime was expected there"});
  expect_sentence(run_in("a:b", true, {}), {"a:b/lib: ", "colon or semicolon in its name", "move Lockstep"});
}

TEST_F(Usage, DiagnoseHasOneFormOfReportAtATime) {
  expect_refused({"diagnose", "--json", "--jsonl", folder_.path()}, {"--json and --jsonl", "expected one of them"});
  expect_refused({"diagnose", "--json", "--jsonl", "--explain", "died"}, {"--json and --jsonl"});
}

TEST_F(Usage, DiagnoseTellsWhatItFoundInsteadOfTraces) {
  expect_refused({"diagnose", folder_.path()}, {folder_.path() + ": no trace files (*.lstrace) in it; start the job"});
  write("a.lstrace.tmp", "");
  expect_refused({"diagnose", folder_.path()}, {"no trace files (*.lstrace) in it, only 1 unfinished; start the job"});
  const std::string one = write("one.lstrace", "x");
  expect_refused({"diagnose", folder_.path()}, {": its only trace file cannot be read: " + one + ": not a Lockstep"});
  write("two.lstrace", "x");
  expect_refused({"diagnose", folder_.path()}, {": none of its 2 trace files can be read; the first: " + one + ": "});
}

TEST_F(Usage, AnExplanationIsAPageOrAnObject) {
  for (const std::string kind : {"missing-call", "idle"}) {
    for (const char* form : {"--json", "--jsonl"}) {
      const Outcome outcome = lockstep({"diagnose", "--explain", kind, form});
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      const nlohmann::json object = nlohmann::json::parse(outcome.out);
      EXPECT_EQ(object["kind"], kind);
      EXPECT_EQ(object["text"], findings_section(kind));
      EXPECT_EQ(object.size(), 2u);
      EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n') == 1, form[6] == 'l');
    }
  }
  expect_refused({"diagnose", "--explain", ""}, {"\"\" is no kind of finding", "missing-call"});
  expect_refused({"diagnose", "--explain", "bad-luck", "--json"},
                 {"\"bad-luck\" is no kind", "known are missing-call"});
}

}  // namespace
}  // namespace lockstep::test
