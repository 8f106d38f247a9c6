// SPDX-License-Identifier: MIT
//
// ncclCommShrink as the reader of the traces sees it: on the ranks that go on there is a second communicator, whose id is
// made from its parent's and equal on both; on the rank left out there is the parent alone, under its name.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "interpose/trace/reader.h"
#include "tests/interpose/run_client.h"
#include "tests/interpose/trace_fixture.h"

namespace lockstep {
namespace {

using trace::TraceFile;

std::map<int32_t, TraceFile> traces_by_rank(const std::string& folder) {
  std::map<int32_t, TraceFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != trace::kFileSuffix) continue;
    Result<TraceFile> file = trace::read_trace(entry.path());
    EXPECT_TRUE(file) << entry.path();
    if (!file || file->comms.empty()) continue;
    const int32_t rank = file->comms[0].rank;
    files.emplace(rank, std::move(*file));
  }
  return files;
}

TEST(Shrink, ChildrenAreNamedByTheirParentAndTheExcludedRankKeepsIt) {
  trace::TempFolder folder;
  const Outcome plain = run({SHRINK_CLIENT}, {}, 60);
  ASSERT_TRUE(plain.exited_with(0)) << plain.err;
  EXPECT_EQ(plain.out, "6 4\n6 0\n6 4\n");
  const Outcome traced = run({SHRINK_CLIENT}, {{"LD_PRELOAD", SHIM_LIBRARY}, {"LOCKSTEP_DIR", folder.path()}}, 60);
  ASSERT_TRUE(traced.exited_with(0)) << traced.err;
  EXPECT_EQ(traced.out, plain.out);

  const std::map<int32_t, TraceFile> files = traces_by_rank(folder.path());
  ASSERT_EQ(files.size(), 3u);
  const trace::CommInfo& parent = files.at(0).comms[0];
  for (const auto& [rank, file] : files) {
    EXPECT_EQ(file.comms[0].name, "tri") << rank;
    EXPECT_EQ(file.comms[0].id, parent.id) << rank;
    EXPECT_EQ(file.comms[0].nranks, 3) << rank;
    ASSERT_EQ(file.comms.size(), rank == 1 ? 1u : 2u) << rank;
    if (rank == 1) continue;
    const trace::CommInfo& child = file.comms[1];
    EXPECT_EQ(child.parent_serial, file.comms[0].serial) << rank;
    EXPECT_EQ(child.parent_id, parent.id) << rank;
    EXPECT_NE(child.id, parent.id) << rank;
    EXPECT_EQ(child.id, files.at(0).comms[1].id) << rank;
    EXPECT_EQ(child.nranks, 2) << rank;
    EXPECT_EQ(child.rank, rank / 2) << rank;
    EXPECT_EQ(child.coll_called, 1u) << rank;
  }
}

}  // namespace
}  // namespace lockstep
