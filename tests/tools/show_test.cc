// SPDX-License-Identifier: MIT
//
// `lockstep show` prints what a foreign program has written into its trace: names, paths, marks. Every text there is
// made here of what a terminal would obey, and none of it may reach the terminal; as JSON it must stay what it was.

#include <gtest/gtest.h>
#include <string.h>

#include <nlohmann/json.hpp>
#include <set>

#include "interpose/abi/functions.h"
#include "tools/show/trace.h"

namespace lockstep::test {
namespace {

// Clears the screen, goes back to the line's begin, is an escape of one byte (C1), turns the direction of writing, and
// is no UTF-8. A number tells where it was.
std::string evil(int number) {
  return "<" + std::to_string(number) +
         "\x1b[2J\r\n\xc2\x9b"
         "2J\xe2\x80\xae\xff>";
}
std::string shown(int number) { return "<" + std::to_string(number) + "\\x1b[2J\\r\\n\\u009b2J\\u202e\\xff>"; }

class Evil {
 public:
  std::string text() { return evil(++count_); }
  template <size_t N>
  void put(char (&field)[N]) {
    strncpy(field, text().c_str(), N - 1);
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

trace::Call some_call() {
  trace::Call call;
  call.fn = static_cast<uint16_t>(abi::Fn::AllReduce);
  call.comm = 1;
  call.count = 64;
  return call;
}

trace::TraceFile evil_file(Evil& words) {
  trace::TraceFile file = {};
  memset(&file.header, 0, sizeof file.header);
  file.path = words.text();
  words.put(file.header.host);
  words.put(file.header.command);
  words.put(file.header.run_id);
  words.put(file.header.lockstep_version);
  words.put(file.header.nccl_path);
  trace::CommInfo comm;
  comm.serial = 1;
  comm.name = words.text();
  file.comms.push_back(comm);
  trace::ThreadInfo thread;
  thread.name = words.text(), thread.phase = words.text(), thread.sample = words.text();
  thread.state = '\x1b';
  file.threads.push_back(thread);
  trace::MarkEvent mark = {};
  mark.kind = 2;
  mark.text = words.text();
  file.marks.push_back(mark);
  trace::Snapshot shot;
  shot.thread_name = words.text(), shot.wait_channel = words.text();
  shot.state = '\r';
  shot.pcs = {0x1234};
  file.snapshots.push_back(shot);
  trace::Symbol symbol;
  symbol.pc = 0x1234;
  symbol.function = words.text(), symbol.file = words.text();
  symbol.line = 7;
  file.symbols.push_back(symbol);
  trace::Module module;
  module.path = words.text(), module.build_id = words.text();
  file.modules.push_back(module);
  file.problems.push_back(words.text());
  file.calls.push_back(some_call());
  return file;
}

std::string as_text(const trace::TraceFile& file, const ShowOptions& options) {
  Symbolizer symbolizer;
  testing::internal::CaptureStdout();
  show_trace_as_text(file, {}, options, symbolizer);
  return testing::internal::GetCapturedStdout();
}

TEST(Show, NothingInATraceMovesTheCursor) {
  Evil words;
  const trace::TraceFile file = evil_file(words);
  ShowOptions options;
  options.modules = true;
  const std::string text = as_text(file, options);
  for (const char* obeyed : {"\x1b", "\r", "\xc2\x9b", "\xe2\x80\xae", "\xff"})
    EXPECT_EQ(text.find(obeyed), std::string::npos) << text;
  for (int number = 1; number <= words.count(); number++)
    EXPECT_NE(text.find(shown(number)), std::string::npos) << "text " << number << " is not shown: " << text;
}

// Every text of a JSON document.
void collect(const nlohmann::json& value, std::set<std::string>& texts) {
  if (value.is_string()) texts.insert(value.get<std::string>());
  if (value.is_structured())
    for (const nlohmann::json& each : value) collect(each, texts);
}

TEST(Show, AsJsonTheTextsStayWhatTheyWere) {
  Evil words;
  const trace::TraceFile file = evil_file(words);
  ShowOptions options;
  options.modules = true;
  Symbolizer symbolizer;
  const std::string text = show_trace_as_json(file, options, symbolizer);
  for (const char raw : {'\x1b', '\r'}) EXPECT_EQ(text.find(raw), std::string::npos);
  const nlohmann::json document = nlohmann::json::parse(text);
  std::set<std::string> texts;
  collect(document, texts);
  int missing = 0;  // the version of lockstep and the path of NCCL are not in it
  for (int number = 1; number <= words.count(); number++) {
    std::string wanted = evil(number);
    wanted.replace(wanted.find('\xff'), 1, "\xef\xbf\xbd");  // what is no UTF-8 cannot be said in JSON
    const auto holds = [&](const std::string& text_in_it) { return text_in_it.find(wanted) != std::string::npos; };
    missing += std::none_of(texts.begin(), texts.end(), holds);
  }
  EXPECT_EQ(missing, 2) << text;
}

}  // namespace
}  // namespace lockstep::test
