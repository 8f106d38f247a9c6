// SPDX-License-Identifier: MIT

#include "reference/train/run/launch_mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace train {
namespace {

struct Library {
  void (*start)(int*, int*) = nullptr;
  void (*broadcast)(void*, int) = nullptr;
  void (*finish)() = nullptr;
} library;

std::string beside_program() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  const std::filesystem::path program(std::string(self, n > 0 ? static_cast<size_t>(n) : 0));
  return program.parent_path().parent_path() / LOCKSTEP_MPI_LIBRARY;
}

}  // namespace

bool mpi_start(int& rank, int& world, std::string& why) {
  // RTLD_GLOBAL: Open MPI opens plugins that take its symbols from there.
  void* handle = dlopen(beside_program().c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    why = std::string("its MPI library cannot be opened (") + dlerror() + ")";
    return false;
  }
  library.start = reinterpret_cast<void (*)(int*, int*)>(dlsym(handle, "lockstep_train_mpi_start"));
  library.broadcast = reinterpret_cast<void (*)(void*, int)>(dlsym(handle, "lockstep_train_mpi_broadcast"));
  library.finish = reinterpret_cast<void (*)()>(dlsym(handle, "lockstep_train_mpi_finish"));
  if (library.start == nullptr || library.broadcast == nullptr || library.finish == nullptr) {
    why = "its MPI library is not the one that belongs to it";
    return false;
  }
  library.start(&rank, &world);
  return true;
}

void mpi_broadcast(void* bytes, size_t size) { library.broadcast(bytes, static_cast<int>(size)); }
void mpi_finish() { library.finish(); }

}  // namespace train
