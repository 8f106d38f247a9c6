// SPDX-License-Identifier: MIT
//
// What a process holds of the system: descriptors, threads, and mappings of the host runtime's memory. Compared before
// and after, while nothing is going on.

#pragma once

#include <dirent.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace lockstep::test {

struct LeftBehind {
  int descriptors = 0;
  int threads = 0;
  int mappings = 0;  // of our memory; malloc's and a sanitizer's come and go

  static LeftBehind now() { return {entries("/proc/self/fd"), entries("/proc/self/task"), our_mappings()}; }

  // Threads and streams that were let go of end by themselves, soon.
  void expect_no_more() const {
    LeftBehind left = now();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!left.within(*this) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      left = now();
    }
    EXPECT_LE(left.descriptors, descriptors);
    EXPECT_LE(left.threads, threads);
    EXPECT_LE(left.mappings, mappings);
  }

 private:
  bool within(const LeftBehind& limit) const {
    return descriptors <= limit.descriptors && threads <= limit.threads && mappings <= limit.mappings;
  }
  static int entries(const char* folder) {
    int count = 0;
    if (DIR* dir = opendir(folder)) {
      while (readdir(dir) != nullptr) ++count;
      closedir(dir);
    }
    return count;
  }
  static int our_mappings() {
    int found = 0;
    char line[512];
    if (std::FILE* file = std::fopen("/proc/self/maps", "r")) {
      while (std::fgets(line, sizeof line, file) != nullptr) found += std::strstr(line, "lockstep-host") != nullptr;
      std::fclose(file);
    }
    return found;
  }
};

}  // namespace lockstep::test
