// SPDX-License-Identifier: MIT
//
// What the three libraries export, read from their ELF files: every function of the list, as the real libraries bind
// and version them, and nothing else. Where the real libraries are present, our names are compared with theirs.

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "interpose/abi/functions.h"

namespace lockstep::test {
namespace {

struct Symbol {
  std::string version;  // "" without one
  bool weak = false;
  uint64_t value = 0;
};

// Defined dynamic symbols of a 64-bit little-endian ELF file.
std::map<std::string, Symbol> exports_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  std::vector<char> bytes(file ? static_cast<size_t>(file.tellg()) : 0);
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::map<std::string, Symbol> found;
  const auto at = [&]<class T>(uint64_t offset, T*) {
    T value{};
    if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  };
  const auto header = at(0, static_cast<Elf64_Ehdr*>(nullptr));
  std::map<uint32_t, Elf64_Shdr> sections;
  std::vector<Elf64_Shdr> all;
  for (int i = 0; i < header.e_shnum; ++i) {
    all.push_back(
        at(header.e_shoff + static_cast<uint64_t>(i) * header.e_shentsize, static_cast<Elf64_Shdr*>(nullptr)));
    sections.emplace(all.back().sh_type, all.back());
  }
  const Elf64_Shdr symbols = sections[SHT_DYNSYM];
  if (symbols.sh_size == 0) return found;
  const uint64_t strings = all[symbols.sh_link].sh_offset;
  const auto text = [&](uint64_t offset) { return std::string(bytes.data() + strings + offset); };

  std::map<int, std::string> versions;
  const Elf64_Shdr definitions = sections[SHT_GNU_verdef];
  for (uint64_t offset = definitions.sh_offset, left = definitions.sh_info; left > 0; --left) {
    const auto definition = at(offset, static_cast<Elf64_Verdef*>(nullptr));
    const auto name = at(offset + definition.vd_aux, static_cast<Elf64_Verdaux*>(nullptr));
    if ((definition.vd_flags & VER_FLG_BASE) == 0) versions[definition.vd_ndx] = text(name.vda_name);
    offset += definition.vd_next;
  }
  for (uint64_t i = 0; i < symbols.sh_size / sizeof(Elf64_Sym); ++i) {
    const auto symbol = at(symbols.sh_offset + i * sizeof(Elf64_Sym), static_cast<Elf64_Sym*>(nullptr));
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS || symbol.st_name == 0) continue;
    const auto index = at(sections[SHT_GNU_versym].sh_offset + i * 2, static_cast<Elf64_Half*>(nullptr));
    const int binding = ELF64_ST_BIND(symbol.st_info);
    EXPECT_NE(STB_GNU_UNIQUE, binding) << text(symbol.st_name);
    found[text(symbol.st_name)] = {versions[index & 0x7fff], binding == STB_WEAK, symbol.st_value};
  }
  return found;
}

const std::string kHostDir = LOCKSTEP_HOST_DIR;

TEST(Exports, OfNcclAreTheListWeakAndStrong) {
  const auto exports = exports_of(kHostDir + "/libnccl.so.2");
  std::set<std::string> names;
  for (const abi::FunctionInfo& f : abi::kFunctions) names.insert(f.name);
#define LOCKSTEP_NCCL(...)
#define LOCKSTEP_NCCL_DEVICE(since, name) names.insert(#name);
#include "interpose/abi/nccl_functions.def"
  EXPECT_EQ(names.size() * 2, exports.size());
  for (const std::string& name : names) {
    const auto plain = exports.find("nccl" + name);
    const auto profiling = exports.find("pnccl" + name);
    ASSERT_NE(exports.end(), plain) << name;
    ASSERT_NE(exports.end(), profiling) << name;
    EXPECT_TRUE(plain->second.weak) << name;
    EXPECT_FALSE(profiling->second.weak) << name;
    EXPECT_EQ(plain->second.value, profiling->second.value) << name;
    EXPECT_EQ("", plain->second.version) << name;
  }
}

TEST(Exports, OfCudartStandAtItsVersionNode) {
  const auto exports = exports_of(kHostDir + "/libcudart.so.13");
  EXPECT_GT(exports.size(), 400u);
  for (const auto& [name, symbol] : exports) {
    EXPECT_TRUE(name.rfind("cuda", 0) == 0 || name.rfind("__cuda", 0) == 0) << name;
    EXPECT_EQ("libcudart.so.13", symbol.version) << name;
  }
  for (const char* name :
       {"cudaMalloc", "cudaStreamSynchronize", "cudaGetLastError", "cudaLaunchKernel", "__cudaRegisterFatBinary"})
    EXPECT_EQ(1u, exports.count(name)) << name;
}

TEST(Exports, OfTheDriverAreItsOwnNamesAndOurEntries) {
  const auto exports = exports_of(kHostDir + "/libcuda.so.1");
  for (const auto& [name, symbol] : exports)
    EXPECT_TRUE(name.rfind("cu", 0) == 0 || name.rfind("lockstep_host_", 0) == 0) << name;
  for (const char* name :
       {"cuInit", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2", "cuStreamIsCapturing",
        "cuStreamSynchronize", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2",
        "cuStreamGetCaptureInfo_v3", "cuGraphLaunch", "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttribute"})
    EXPECT_EQ(1u, exports.count(name)) << name;
}

TEST(Exports, OfCudartAreTheRealOnes) {
  const std::string cudart = LOCKSTEP_REAL_CUDART;
  if (cudart.empty()) GTEST_SKIP() << "no libcudart.so.13 on this machine to compare with";
  const auto real = exports_of(cudart);
  const auto ours = exports_of(kHostDir + "/libcudart.so.13");
  EXPECT_GT(real.size(), 400u);
  for (const auto& [name, symbol] : real) {
    const auto mine = ours.find(name);
    ASSERT_NE(ours.end(), mine) << name << " of " << cudart << " is missing: give it a row in cuda_functions.def";
    EXPECT_EQ(symbol.version, mine->second.version) << name;
    EXPECT_EQ(symbol.weak, mine->second.weak) << name;
  }
  for (const auto& [name, symbol] : ours) EXPECT_EQ(1u, real.count(name)) << name << " is no function of " << cudart;
}

// The page's table of what is there and what is not.
TEST(Exports, AreAsTheDocumentationSays) {
  std::set<std::string> present;
  std::set<std::string> absent;
#define LOCKSTEP_CUDART(name, params, args) present.insert(#name);
#define LOCKSTEP_CUDART_ABSENT(name) absent.insert(#name);
#include "reference/cuda/include/cuda_functions.def"
  std::ifstream page(LOCKSTEP_HOST_PAGE);
  int checked = 0;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    std::istringstream row(line);
    for (std::string cell; std::getline(row, cell, '|');) cells.push_back(cell);
    if (cells.size() != 4) continue;  // "", what, present, absent
    for (size_t column = 2; column < 4; ++column)
      for (size_t at = 0; (at = cells[column].find("`cuda", at)) != std::string::npos; ++at) {
        const std::string name = cells[column].substr(at + 1, cells[column].find('`', at + 1) - at - 1);
        if (name == "cudaEventInterprocess") continue;  // a flag
        EXPECT_EQ(1u, (column == 2 ? present : absent).count(name)) << name;
        ++checked;
      }
  }
  EXPECT_GT(checked, 50);
}

TEST(Exports, HoldAllThatTheRealNcclHas) {
  const std::string nccl = LOCKSTEP_REAL_NCCL;
  if (nccl.empty()) GTEST_SKIP() << "no libnccl.so.2 on this machine to compare with";
  const auto ours = exports_of(kHostDir + "/libnccl.so.2");
  int compared = 0;
  for (const auto& [name, symbol] : exports_of(nccl)) {
    if (name == "ncclResetDebugInitInternal") continue;  // in no header
    const auto mine = ours.find(name);
    ASSERT_NE(ours.end(), mine) << name << " of " << nccl << " is missing";
    EXPECT_EQ(symbol.weak, mine->second.weak) << name;
    ++compared;
  }
  EXPECT_GT(compared, 40);
}

}  // namespace
}  // namespace lockstep::test
