// SPDX-License-Identifier: MIT
//
// A program that is not linked to NCCL. With "none" it calls ncclAllReduce where a weak reference finds one; with a path it
// loads that library into a private scope, as Python does with an extension, and calls its `use_nccl`; with "eyes" and a
// path it lets the library say what it sees; with "no-cuda" it waits by CUDA where a weak reference finds the function.

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

extern "C" __attribute__((weak)) int ncclAllReduce(const void*, void*, size_t, int, int, void*, void*);
extern "C" __attribute__((weak)) int cudaStreamSynchronize(void*);

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (strcmp(argv[1], "none") == 0) {
    if (!ncclAllReduce) return 3;
    for (int i = 0; i < 2; i++) printf("%d\n", ncclAllReduce(nullptr, nullptr, 1, 7, 0, nullptr, nullptr));
    return 0;
  }
  if (strcmp(argv[1], "no-cuda") == 0) {
    if (!cudaStreamSynchronize) return 3;
    printf("%d\n", cudaStreamSynchronize(nullptr));
    return 0;
  }
  const bool eyes = strcmp(argv[1], "eyes") == 0 && argc > 2;
  void* library = dlopen(argv[eyes ? 2 : 1], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 4;
  }
  if (eyes) {
    const auto see = reinterpret_cast<int (*)(const char*)>(dlsym(library, "see"));
    const auto see_next = reinterpret_cast<int (*)(const char*)>(dlsym(library, "see_next"));
    printf("%d %d %d %d\n", see("ncplugin"), see("cuplugin"), see("plugin"), see_next("ncclBroadcast"));
    return 0;
  }
  const auto use = reinterpret_cast<int (*)()>(dlsym(library, "use_nccl"));
  printf("%d\n", use());
  return 0;
}
