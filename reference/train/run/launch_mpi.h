// SPDX-License-Identifier: MIT
//
// The little that MPI is needed for, by way of a library that is opened when it is needed.

#pragma once

#include <cstddef>
#include <string>

namespace train {

// False, and why, where there is no MPI.
bool mpi_start(int& rank, int& world, std::string& why);
void mpi_broadcast(void* bytes, size_t size);  // from rank 0
void mpi_finish();

}  // namespace train
