// SPDX-License-Identifier: MIT
//
// A program that is not linked to NCCL. With "none" it asks the loader for ncclAllReduce and finds whatever is there; with a
// path it loads that library into a private scope, as Python does with an extension, and calls its `use_nccl`.

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (strcmp(argv[1], "none") == 0) {
    using AllReduce = int (*)(const void*, void*, size_t, int, int, void*, void*);
    const auto all_reduce = reinterpret_cast<AllReduce>(dlsym(RTLD_DEFAULT, "ncclAllReduce"));
    if (!all_reduce) return 3;
    for (int i = 0; i < 2; i++) printf("%d\n", all_reduce(nullptr, nullptr, 1, 7, 0, nullptr, nullptr));
    return 0;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 4;
  }
  const auto use = reinterpret_cast<int (*)()>(dlsym(library, "use_nccl"));
  printf("%d\n", use());
  return 0;
}
