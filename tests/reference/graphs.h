// SPDX-License-Identifier: MIT
//
// What the tests of captured graphs and of graphs made by hand both need.

#pragma once

#include <atomic>

#include "tests/reference/streams.h"

namespace lockstep::test {

inline void count_up(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

inline cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  EXPECT_EQ(cudaSuccess, cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}
inline size_t nodes_in(cudaGraph_t graph) {
  size_t count = 0;
  EXPECT_EQ(cudaSuccess, cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

}  // namespace lockstep::test
