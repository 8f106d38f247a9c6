// SPDX-License-Identifier: MIT
//
// Our NCCL ABI is the real one: sizes, offsets, enum values, prototypes, and no public function forgotten.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "interpose/abi/comm_hash.h"
#include "interpose/abi/functions.h"
#include "interpose/abi/nccl.h"

using Facts = std::vector<std::pair<std::string, long long>>;
Facts our_facts();
Facts real_facts();
int real_version();

namespace lockstep::abi {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(FunctionList, IdsAndNamesAreUnique) {
  std::set<int> ids;
  std::set<std::string> names;
  for (const FunctionInfo& f : kFunctions) {
    EXPECT_TRUE(ids.insert(static_cast<int>(f.fn)).second) << f.name;
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
  }
}

// The numbers stand in trace files: these must never change.
TEST(FunctionList, IdsOfTheFirstFormatVersionStand) {
  EXPECT_EQ(static_cast<int>(Fn::CommInitRank), 10);
  EXPECT_EQ(static_cast<int>(Fn::CommDestroy), 21);
  EXPECT_EQ(static_cast<int>(Fn::AllReduce), 60);
  EXPECT_EQ(static_cast<int>(Fn::ReduceScatter), 65);
  EXPECT_EQ(static_cast<int>(Fn::Send), 80);
  EXPECT_EQ(static_cast<int>(Fn::GroupEnd), 91);
}

TEST(FunctionList, RolesTellWhatAFunctionTakes) {
  EXPECT_TRUE(has_role(Fn::Reduce, ArgRole::root));
  EXPECT_FALSE(has_role(Fn::AllReduce, ArgRole::root));
  EXPECT_TRUE(has_role(Fn::Send, ArgRole::peer));
  EXPECT_FALSE(has_role(Fn::GroupStart, ArgRole::comm));
}

TEST(FunctionList, EveryEnqueuedFunctionHasCommAndStream) {
  for (const FunctionInfo& f : kFunctions) {
    if (f.kind != FunctionKind::collective && f.kind != FunctionKind::p2p && f.kind != FunctionKind::onesided) continue;
    EXPECT_TRUE(f.hooked) << f.name;
    EXPECT_TRUE(has_role(f.fn, ArgRole::comm)) << f.name;
    EXPECT_TRUE(has_role(f.fn, ArgRole::stream)) << f.name;
  }
}

TEST(FunctionList, DocumentedTableIsTheListItself) {
  EXPECT_EQ(slurp(LOCKSTEP_SOURCE_DIR "/docs/nccl-functions.md"), slurp(LOCKSTEP_FUNCTIONS_MD))
      << "docs/nccl-functions.md is out of date: regenerate it with `lockstep_abi_list markdown`";
}

TEST(CommHash, DependsOnEveryByteAndOnTheOrderOfThePieces) {
  char id[128] = {};
  const uint64_t zero = comm_hash_of_unique_id(id);
  std::set<uint64_t> seen{zero};
  for (char& byte : id) {
    byte = 1;
    EXPECT_TRUE(seen.insert(comm_hash_of_unique_id(id)).second);
    byte = 0;
  }
  EXPECT_NE(comm_hash_of_child(zero, 1, 2), comm_hash_of_child(zero, 2, 1));
  EXPECT_EQ(comm_hash_of_child(zero, 1, 2), comm_hash_of_child(zero, 1, 2));
}

#ifdef LOCKSTEP_REAL_NCCL_H

TEST(RealHeader, SizesOffsetsAndValuesAreEqual) {
  std::map<std::string, long long> ours;
  for (const auto& [name, value] : our_facts()) ours[name] = value;
  const Facts real = real_facts();
  ASSERT_GT(real.size(), 50u);
  for (const auto& [name, value] : real) {
    // New types are appended, so the count grows from version to version; everything else must stay.
    if (name == "ncclNumTypes") EXPECT_LE(value, ours.at(name));
    else EXPECT_EQ(ours.at(name), value) << name;
  }
}

TEST(RealHeader, DeclaresNoFunctionThatTheListLacks) {
  const std::string header = slurp(LOCKSTEP_REAL_NCCL_H);
  const std::regex declaration(R"((?:^|\n)\s*(?:ncclResult_t|const char\s*\*|void)\s+nccl(\w+)\s*\()");
  int found = 0;
  for (std::sregex_iterator at(header.begin(), header.end(), declaration), end; at != end; ++at, ++found)
    EXPECT_NE(find_function(std::string_view((*at)[1].str())), nullptr)
        << "nccl" << (*at)[1] << " is missing in nccl_functions.def";
  EXPECT_GT(found, 20);
}

#else

TEST(RealHeader, SizesOffsetsAndValuesAreEqual) { GTEST_SKIP() << "no nccl.h with a CUDA toolkit on this machine"; }
TEST(RealHeader, DeclaresNoFunctionThatTheListLacks) { GTEST_SKIP() << "no nccl.h with a CUDA toolkit on this machine"; }

#endif

}  // namespace
}  // namespace lockstep::abi
