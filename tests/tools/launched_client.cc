// SPDX-License-Identifier: MIT
//
// A small NCCL program for any launcher that says RANK or OMPI_COMM_WORLD_RANK: two all-reduces, and a third that one
// rank does not make, because it stays in a function of its own, is killed, or is stopped. The unique id goes through a
// file.
//
//   launched_client ID_FILE none|stay|kill|stop RANK

#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int from_environment(const char* a, const char* b) {
  const char* value = getenv(a) ? getenv(a) : getenv(b);
  if (!value) {
    fprintf(stderr, "launched_client: %s or %s is not set\n", a, b);
    exit(2);
  }
  return atoi(value);
}

ncclUniqueId shared_id(const char* path, int rank) {
  ncclUniqueId id;
  if (rank == 0) {
    if (ncclGetUniqueId(&id) != ncclSuccess) exit(3);
    char temporary[512];
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE* out = fopen(temporary, "wb");
    if (!out || fwrite(&id, sizeof id, 1, out) != 1 || fclose(out) != 0 || rename(temporary, path) != 0) exit(3);
    return id;
  }
  for (int tries = 0; tries < 2000; tries++, usleep(5000)) {
    FILE* in = fopen(path, "rb");
    if (!in) continue;
    const bool whole = fread(&id, sizeof id, 1, in) == 1;
    fclose(in);
    if (whole) return id;
  }
  exit(3);
}

__attribute__((noinline)) void stays_away() {
  for (;;) pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int rank = from_environment("RANK", "OMPI_COMM_WORLD_RANK"),
            ranks = from_environment("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE");
  ncclComm_t comm;
  if (ncclCommInitRank(&comm, ranks, shared_id(argv[1], rank), rank) != ncclSuccess) return 3;
  cudaStream_t stream;
  void* buffer;
  if (cudaStreamCreate(&stream) != cudaSuccess || cudaMalloc(&buffer, 4096) != cudaSuccess) return 3;
  for (int i = 0; i < 3; i++) {
    if (i == 2 && rank == atoi(argv[3])) {
      if (strcmp(argv[2], "stay") == 0) stays_away();
      if (strcmp(argv[2], "kill") == 0) raise(SIGKILL);
      if (strcmp(argv[2], "stop") == 0) raise(SIGSTOP);
    }
    if (ncclAllReduce(buffer, buffer, 1024, ncclFloat, ncclSum, comm, stream) != ncclSuccess) return 3;
    if (cudaStreamSynchronize(stream) != cudaSuccess) return 3;
  }
  ncclCommDestroy(comm);
  return 0;
}
