// SPDX-License-Identifier: MIT
//
// The real libnccl as the oracle: what it answers before it needs a GPU (missing communicators, group misuse, texts of
// errors) the host's must answer word for word. Both are opened by name, each scene in a process of its own, because
// the last error and the group are state of the process.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <string>

#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"

namespace lockstep::test {
namespace {

const std::string kHost = LOCKSTEP_HOST_DIR "/libnccl.so.2";
const std::string kReal = LOCKSTEP_REAL_NCCL;

// One library, and what it answered so far.
class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) said_ = dlerror();
  }
  template <class F>
  F* find(const char* name) {
    return reinterpret_cast<F*>(dlsym(handle_, name));
  }
  template <class F, class... Arguments>
  Library& call(F*, const char* name, Arguments... arguments) {
    F* const function = find<F>(name);
    if (function == nullptr) {
      said_ += std::string(name) + " is missing\n";
      return *this;
    }
    const ncclResult_t result = function(arguments...);
    said_ += std::string(name) + " " + std::to_string(result) + " '" + last() + "'\n";
    return *this;
  }
  void note(const std::string& text) { said_ += text + "\n"; }
  std::string last() { return find<decltype(ncclGetLastError)>("ncclGetLastError")(nullptr); }
  const std::string& said() const { return said_; }

 private:
  void* const handle_;
  std::string said_;
};
#define CALL(function, ...) call(static_cast<decltype(function)*>(nullptr), #function __VA_OPT__(, ) __VA_ARGS__)

using Scene = std::function<void(Library&)>;

// What a library says in a process of its own.
std::string answers(const std::string& path, const Scene& scene) {
  int channel[2];
  if (pipe(channel) != 0) return "no pipe";
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(50);
    Library library(path);
    if (library.said().empty()) scene(library);
    const std::string& said = library.said();
    _exit(write(channel[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  close(channel[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(channel[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  close(channel[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) text += "ended with status " + std::to_string(status);
  return text;
}

bool comparable() {
  if (kReal.empty()) return false;
  return answers(kReal, [](Library& l) {
           int version = 0;
           l.find<decltype(ncclGetVersion)>("ncclGetVersion")(&version);
           l.note(std::to_string(version / 100));
         }) == "228\n";
}
#define NEEDS_THE_REAL_ONE() \
  if (!comparable()) GTEST_SKIP() << "no libnccl.so.2 of NCCL 2.28 on this machine to compare with"

void expect_same(const char* what, const Scene& scene) {
  const std::string real = answers(kReal, scene);
  EXPECT_FALSE(real.empty()) << what;
  EXPECT_EQ(real, answers(kHost, scene)) << what;
}

ncclSimInfo_t sim_info(unsigned magic = NCCL_SIM_INFO_MAGIC) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  info.magic = magic;
  info.version = 22809;
  return info;
}

void all_reduce_of_nothing(Library& l) {
  l.CALL(ncclAllReduce, nullptr, nullptr, size_t{1}, ncclFloat, ncclSum, nullptr, nullptr);
}

TEST(Conformance, OfOperationsWithoutACommunicator) {
  NEEDS_THE_REAL_ONE();
  expect_same("collectives", [](Library& l) {
    all_reduce_of_nothing(l);
    l.CALL(ncclReduce, nullptr, nullptr, size_t{1}, ncclFloat, ncclSum, 0, nullptr, nullptr);
    l.CALL(ncclBroadcast, nullptr, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclBcast, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclAllGather, nullptr, nullptr, size_t{1}, ncclFloat, nullptr, nullptr);
    l.CALL(ncclReduceScatter, nullptr, nullptr, size_t{1}, ncclFloat, ncclSum, nullptr, nullptr);
    l.CALL(ncclAlltoAll, nullptr, nullptr, size_t{1}, ncclFloat, nullptr, nullptr);
    l.CALL(ncclGather, nullptr, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclScatter, nullptr, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclSend, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclRecv, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclGroupEnd);
  });
  expect_same("every argument wrong", [](Library& l) {
    l.CALL(ncclAllReduce, nullptr, nullptr, size_t{0}, static_cast<ncclDataType_t>(99), static_cast<ncclRedOp_t>(-3),
           nullptr, nullptr);
  });
}

TEST(Conformance, OfCallsForACommunicatorThatIsNone) {
  NEEDS_THE_REAL_ONE();
  expect_same("queries", [](Library& l) {
    int value = 0;
    ncclResult_t state = ncclSuccess;
    l.CALL(ncclCommCount, nullptr, &value).CALL(ncclCommCuDevice, nullptr, &value);
    l.CALL(ncclCommUserRank, nullptr, nullptr).CALL(ncclCommGetAsyncError, nullptr, &state);
  });
  expect_same("ends", [](Library& l) {
    l.CALL(ncclCommFinalize, nullptr).CALL(ncclCommDestroy, nullptr).CALL(ncclCommAbort, nullptr);
    l.CALL(ncclCommRevoke, nullptr, 0).CALL(ncclCommRevoke, nullptr, 3);
  });
  expect_same("memory", [](Library& l) {
    void* handle = nullptr;
    l.CALL(ncclCommRegister, nullptr, nullptr, size_t{0}, &handle).CALL(ncclCommDeregister, nullptr, nullptr);
    l.CALL(ncclCommWindowDeregister, nullptr, nullptr);
  });
  expect_same("operators", [](Library& l) {
    float scalar = 1;
    ncclRedOp_t op = ncclSum;
    l.CALL(ncclRedOpCreatePreMulSum, &op, &scalar, ncclFloat, ncclScalarHostImmediate, nullptr);
    for (const int number : {0, 4, -1, 5, 77, 0x7fffffff})
      l.CALL(ncclRedOpDestroy, static_cast<ncclRedOp_t>(number), nullptr);
  });
}

TEST(Conformance, OfGroups) {
  NEEDS_THE_REAL_ONE();
  expect_same("ends without a start", [](Library& l) { l.CALL(ncclGroupEnd).CALL(ncclGroupEnd); });
  expect_same("nesting", [](Library& l) {
    l.CALL(ncclGroupStart).CALL(ncclGroupStart).CALL(ncclGroupEnd).CALL(ncclGroupEnd).CALL(ncclGroupEnd);
  });
  expect_same("an error stays", [](Library& l) {
    l.CALL(ncclGroupStart).CALL(ncclGroupStart);
    all_reduce_of_nothing(l);
    l.CALL(ncclGroupEnd).CALL(ncclGroupEnd).CALL(ncclGroupEnd);
  });
  expect_same("messages", [](Library& l) {
    l.CALL(ncclGroupStart).CALL(ncclSend, nullptr, size_t{1}, ncclFloat, 0, nullptr, nullptr);
    l.CALL(ncclAlltoAll, nullptr, nullptr, size_t{1}, ncclFloat, nullptr, nullptr).CALL(ncclGroupEnd);
  });
  expect_same("what does not count as the group's error", [](Library& l) {
    int value = 0;
    ncclResult_t state = ncclSuccess;
    float scalar = 1;
    ncclRedOp_t op = ncclSum;
    void* handle = nullptr;
    l.CALL(ncclGroupStart).CALL(ncclCommCount, nullptr, &value).CALL(ncclCommGetAsyncError, nullptr, &state);
    l.CALL(ncclRedOpDestroy, ncclSum, nullptr).CALL(ncclCommRegister, nullptr, nullptr, size_t{0}, &handle);
    l.CALL(ncclRedOpCreatePreMulSum, &op, &scalar, ncclFloat, ncclScalarHostImmediate, nullptr);
    l.CALL(ncclCommFinalize, nullptr).CALL(ncclCommDestroy, nullptr).CALL(ncclGroupEnd);
  });
}

TEST(Conformance, OfSimulatedGroups) {
  NEEDS_THE_REAL_ONE();
  expect_same("outside", [](Library& l) {
    ncclSimInfo_t info = sim_info();
    ncclSimInfo_t garbage = sim_info(5);
    l.CALL(ncclGroupSimulateEnd, &info).CALL(ncclGroupSimulateEnd, &garbage).CALL(ncclGroupSimulateEnd, nullptr);
  });
  expect_same("empty", [](Library& l) {
    ncclSimInfo_t info = sim_info();
    l.CALL(ncclGroupStart).CALL(ncclGroupSimulateEnd, &info).CALL(ncclGroupEnd);
    l.note(std::to_string(info.estimatedTime));
    l.CALL(ncclGroupStart).CALL(ncclGroupSimulateEnd, nullptr).CALL(ncclGroupEnd);
  });
  expect_same("not initialised, which closes the group", [](Library& l) {
    ncclSimInfo_t garbage = sim_info(5);
    l.CALL(ncclGroupStart).CALL(ncclGroupSimulateEnd, &garbage).CALL(ncclGroupEnd);
  });
  expect_same("nested, where nothing is looked at", [](Library& l) {
    ncclSimInfo_t garbage = sim_info(5);
    l.CALL(ncclGroupStart).CALL(ncclGroupStart).CALL(ncclGroupSimulateEnd, &garbage).CALL(ncclGroupEnd);
    l.CALL(ncclGroupEnd);
  });
  expect_same("after an error", [](Library& l) {
    ncclSimInfo_t garbage = sim_info(5);
    l.CALL(ncclGroupStart);
    all_reduce_of_nothing(l);
    l.CALL(ncclGroupSimulateEnd, &garbage).CALL(ncclGroupEnd);
  });
}

TEST(Conformance, OfTextsAndVersions) {
  NEEDS_THE_REAL_ONE();
  expect_same("texts", [](Library& l) {
    auto* const text = l.find<decltype(ncclGetErrorString)>("ncclGetErrorString");
    for (int result = -1; result < 12; ++result) l.note(text(static_cast<ncclResult_t>(result)));
    int version = 0;
    l.CALL(ncclGetVersion, &version).CALL(ncclGetVersion, nullptr);
    l.note(std::to_string(version));
    l.CALL(ncclGetUniqueId, nullptr);
  });
  setenv("NCCL_COMM_ID", "nonsense", 1);
  expect_same("NCCL_COMM_ID", [](Library& l) {
    ncclUniqueId id;
    l.CALL(ncclGetUniqueId, &id);
  });
  unsetenv("NCCL_COMM_ID");
}

// Printed lines, with what differs from run to run (time, process, place in the source) masked.
TEST(Conformance, OfPrintedWarnings) {
  NEEDS_THE_REAL_ONE();
  const auto printed = [](const std::string& library) {
    char folder[] = "/tmp/lockstep-conformance-XXXXXX";
    const std::string place = mkdtemp(folder);
    setenv("NCCL_DEBUG", "WARN", 1);
    setenv("NCCL_DEBUG_FILE", (place + "/%p.%h%%").c_str(), 1);
    const std::string names = answers(library, [&](Library& l) {
      char host[256] = "";
      gethostname(host, sizeof host - 1);
      l.CALL(ncclGroupEnd);
      all_reduce_of_nothing(l);
      l.note(place + "/" + std::to_string(getpid()) + "." + std::string(host, strcspn(host, ".")) + "%");
    });
    unsetenv("NCCL_DEBUG");
    unsetenv("NCCL_DEBUG_FILE");
    const size_t last_line = names.rfind('\n', names.size() - 2) + 1;
    const std::string path = names.substr(last_line, names.size() - last_line - 1);
    std::ifstream file(path);
    std::string text((std::istreambuf_iterator<char>(file)), {});
    unlink(path.c_str());
    rmdir(place.c_str());
    text = std::regex_replace(text, std::regex("\\[[0-9]{4}-[0-9: -]+\\]"), "[time]");
    text = std::regex_replace(text, std::regex(":[0-9]+:[0-9]+ \\["), ":pid:tid [");
    return std::regex_replace(text, std::regex("\\] [^ ]+:[0-9]+ NCCL"), "] place NCCL");
  };
  const std::string real = printed(kReal);
  EXPECT_NE(std::string::npos, real.find("NCCL WARN AllReduce : comm argument is NULL"));
  EXPECT_EQ(real, printed(kHost));
}

// What releases after 2.28 have, and what kernels would need: an error that says so, whatever the arguments.
TEST(Conformance, OfWhatIsNotThere) {
  const auto says = [](const char* name) {
    return answers(kHost, [name](Library& l) {
      // Arguments stay in their registers; these functions look at none.
      l.note(std::to_string(l.find<ncclResult_t(void*, void*, void*, void*, void*, void*)>(name)(
          nullptr, nullptr, nullptr, nullptr, nullptr, nullptr)));
      l.note(l.last());
    });
  };
  int newer = 0;
  for (const abi::FunctionInfo& f : abi::kFunctions) {
    if (f.since <= 22809 || f.fn == abi::Fn::ParamDumpAll) continue;
    ++newer;
    const std::string name = std::string("nccl") + f.name;
    EXPECT_EQ(
        "5\n" + name + " is of NCCL 2." + std::to_string(f.since / 100 % 100) + "; the host runtime is as NCCL 2.28\n",
        says(name.c_str()));
  }
  EXPECT_GT(newer, 15);
#define LOCKSTEP_NCCL(...)
#define LOCKSTEP_NCCL_DEVICE(since, name)                                                                    \
  EXPECT_EQ("5\nnccl" #name " : communication from kernels needs a GPU; the host runtime runs no kernels\n", \
            says("nccl" #name));
#include "interpose/abi/nccl_functions.def"
}

}  // namespace
}  // namespace lockstep::test
