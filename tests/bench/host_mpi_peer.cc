// SPDX-License-Identifier: MIT
//
// What the host runtime is compared with: the ranks of an MPI job at the bench's board; see host_board.h. Started by
// mpirun with the path of the board.

#include <fcntl.h>
#include <mpi.h>

#include <cstdio>

#include "tests/bench/host_board.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int fd = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
  Board* const board = fd < 0 ? nullptr : map_board(fd);
  if (board == nullptr || board->ranks != ranks) {
    std::fprintf(stderr, "host_mpi_peer: expected the path of a bench's board for %d ranks\n", ranks);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
  std::vector<float> send(kMaxFloats);
  std::vector<float> recv(kMaxFloats);
  serve(*board, rank, send.data(), recv.data(), [](const float* from, float* to, size_t floats) {
    MPI_Allreduce(from, to, static_cast<int>(floats), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
  return 0;
}
