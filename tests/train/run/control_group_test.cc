// SPDX-License-Identifier: MIT
//
// Limits of control groups, in trees made for the purpose.

#include "reference/train/run/control_group.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace train {
namespace {

class ControlGroup : public testing::Test {
 protected:
  ControlGroup() {
    std::string name = std::filesystem::temp_directory_path() / "train-groups-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~ControlGroup() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = root_ + '/' + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  // The limit's file and bytes.
  std::string limit(const std::string& groups) const {
    write("groups", groups);
    const auto found = memory_limit(root_ + "/groups", root_);
    return found ? found->file.substr(root_.size()) + ' ' + std::to_string(static_cast<long long>(found->bytes))
                 : "none";
  }

  std::string root_;
};

TEST_F(ControlGroup, TheTightestOnTheWayToTheRootHolds) {
  write("job/memory.max", "3000\n");
  write("job/step/memory.max", "max\n");
  write("job/step/task/memory.max", "5000\n");
  write("job/other/memory.max", "10\n");
  EXPECT_EQ(limit("0::/job/step/task\n"), "/job/memory.max 3000");
  EXPECT_EQ(limit("0::/job/other\n"), "/job/other/memory.max 10");
  EXPECT_EQ(limit("0::/\n"), "none");
}

TEST_F(ControlGroup, InAContainerTheTreeBeginsAtItsGroup) {
  write("memory.max", "4000\n");
  EXPECT_EQ(limit("0::/\n"), "/memory.max 4000");
  write("memory/memory.limit_in_bytes", "2000\n");
  EXPECT_EQ(limit("4:memory:/docker/0123\n0::/\n"), "/memory/memory.limit_in_bytes 2000");
}

TEST_F(ControlGroup, OfTheFirstVersionTheMemoryControllersHierarchyCounts) {
  write("memory/job/memory.limit_in_bytes", "7000\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cpu/job/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(limit("3:cpu,cpuacct:/job\n4:memory:/job\n"), "/memory/job/memory.limit_in_bytes 7000");
  EXPECT_EQ(limit("4:hugetlb,memory:/job\n"), "/memory/job/memory.limit_in_bytes 7000");
  EXPECT_EQ(limit("4:memory2:/job\n"), "none");
}

TEST_F(ControlGroup, WhatCannotBeReadLimitsNothing) {
  write("job/memory.max", "many\n");
  EXPECT_EQ(limit("0::/job\nnonsense\n0:\n\n"), "none");
  EXPECT_FALSE(memory_limit(root_ + "/absent", root_).has_value());
  EXPECT_EQ(limit("0::job"), "none");  // no leading slash: not a group's path, and nothing is there
}

}  // namespace
}  // namespace train
