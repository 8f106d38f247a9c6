// SPDX-License-Identifier: MIT
//
// Prints nccl_functions.def in the other forms the project needs, so that none of them is kept by hand:
//
//   lockstep_abi_list markdown             docs/nccl-functions.md
//   lockstep_abi_list prototypes VERSION   one LOCKSTEP_SAME(...) row per function that NCCL VERSION declares, for the test
//                                          that compares our prototypes with the real header's

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "interpose/abi/functions.h"

namespace {

using lockstep::abi::FunctionInfo;
using lockstep::abi::FunctionKind;
using lockstep::abi::kFunctions;

struct Row {
  const char* name;
  const char* result;
  const char* types;  // "const void*, size_t", empty for none
};

constexpr Row kRows[] = {
#define STR_(...) #__VA_ARGS__
#define STR(...) STR_(__VA_ARGS__)
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...) \
  {#name, #result, STR(LOCKSTEP_LIST(LOCKSTEP_ARG_TYPE __VA_OPT__(, ) __VA_ARGS__))},
#define LOCKSTEP_NCCL_DEVICE(since, name)
#include "interpose/abi/nccl_functions.def"
};

struct DeviceRow {
  const char* name;
  unsigned since;
};
constexpr DeviceRow kDeviceRows[] = {
#define LOCKSTEP_NCCL(id, since, hook, kind, result, name, ...)
#define LOCKSTEP_NCCL_DEVICE(since, name) {#name, since},
#include "interpose/abi/nccl_functions.def"
};

const char* kind_words(FunctionKind kind) {
  switch (kind) {
    case FunctionKind::local: return "library";
    case FunctionKind::init: return "makes a communicator";
    case FunctionKind::teardown: return "ends or changes a communicator";
    case FunctionKind::query: return "query";
    case FunctionKind::memory: return "memory";
    case FunctionKind::window: return "window";
    case FunctionKind::redop: return "reduction operator";
    case FunctionKind::collective: return "collective";
    case FunctionKind::p2p: return "point to point";
    case FunctionKind::onesided: return "one-sided";
    case FunctionKind::group_start: return "group";
    case FunctionKind::group_end: return "group";
    case FunctionKind::param: return "library parameters";
  }
  return "";
}

// 22807 -> "2.28.7"; the base version stands for everything up to it.
std::string version_words(unsigned code) {
  const std::string words =
      std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
  return code == 21000 ? "2.10 or older" : words;
}

void print_markdown() {
  std::puts("# NCCL's host functions, and what Lockstep does with each");
  std::puts("");
  std::puts("Made from `interpose/abi/nccl_functions.def` by `lockstep_abi_list markdown`; a test compares the two.");
  std::puts("*traced*: the shim records the call. *passed on*: the shim does not define the function, so the call goes");
  std::puts("straight to NCCL. Functions that a newer NCCL adds are passed on too.");
  std::puts("");
  std::puts("| id | function | since | class | Lockstep |");
  std::puts("|---|---|---|---|---|");
  for (const FunctionInfo& f : kFunctions)
    std::printf("| %d | `nccl%s` | %s | %s | %s |\n", static_cast<int>(f.fn), f.name, version_words(f.since).c_str(),
                kind_words(f.kind), f.hooked ? "traced" : "passed on");
  for (const DeviceRow& row : kDeviceRows)
    std::printf("| | `nccl%s` | %s | device API, host side | passed on |\n", row.name, version_words(row.since).c_str());
}

void print_prototypes(unsigned version) {
  for (size_t i = 0; i < std::size(kFunctions); ++i)
    if (kFunctions[i].since <= version)
      std::printf("LOCKSTEP_SAME(%s, %s, %s)\n", kRows[i].name, kRows[i].result, kRows[i].types);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "markdown" && argc == 2) return print_markdown(), 0;
  if (what == "prototypes" && argc == 3) return print_prototypes(static_cast<unsigned>(std::atoi(argv[2]))), 0;
  std::fputs("usage: lockstep_abi_list markdown | prototypes VERSION_CODE\n", stderr);
  return 2;
}
