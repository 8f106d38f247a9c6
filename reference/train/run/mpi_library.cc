// SPDX-License-Identifier: MIT
//
// The library behind launch_mpi.h, the only thing here that is linked to MPI. MPI carries the unique id and is told
// when a rank ends well, nothing else: all communication of the training is NCCL's.

#include <mpi.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void lockstep_train_mpi_start(int* rank, int* world) {
  MPI_Init(nullptr, nullptr);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, world);
}

EXPORT void lockstep_train_mpi_broadcast(void* bytes, int size) { MPI_Bcast(bytes, size, MPI_BYTE, 0, MPI_COMM_WORLD); }

EXPORT void lockstep_train_mpi_finish() { MPI_Finalize(); }
