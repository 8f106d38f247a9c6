// SPDX-License-Identifier: MIT

#include "reference/train/run/launch.h"

#include <cuda_runtime.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/run/launch_mpi.h"

namespace train {
namespace {

std::optional<int> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  if (const auto [stop, error] = std::from_chars(text, end, value); error != std::errc{} || stop != end || value < 0)
    throw Refusal(std::string(variable) + " is \"" + text + "\", expected a number");
  return value;
}

std::optional<int> first_number(std::initializer_list<const char*> variables) {
  for (const char* variable : variables)
    if (const auto value = number_in(variable)) return value;
  return std::nullopt;
}

bool meeting_place(const Options& options) {
  return std::getenv("NCCL_COMM_ID") != nullptr || !options.id_file.empty();
}

int ranks_of_layout(const Options& options) {
  if (options.ranks > 0) return options.ranks;
  return std::max(options.shape.dp, 1) * options.shape.pp * options.shape.cp * options.shape.tp;
}

Launch by_environment(int rank, int world, const Options& options) {
  if (rank >= world)
    throw Refusal("RANK = " + std::to_string(rank) + " is not below WORLD_SIZE = " + std::to_string(world));
  if (world > 1 && !meeting_place(options))
    throw Refusal(
        "the environment says that this is one of several ranks, but not where they meet: set NCCL_COMM_ID=host:port, "
        "or give --id-file FILE in a folder they share");
  return {Launch::As::environment, rank, world,
          first_number({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}).value_or(rank)};
}

// ---- --id-file: rank 0 writes the id under a temporary name and renames it; the others wait for it. Rank 0 removes
// the file at the end; one that a killed job has left behind names ranks that are gone, which NCCL then says.

void write_id(const std::string& path, const ncclUniqueId& id) {
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out.write(id.internal, sizeof id.internal);
  out.close();
  if (!out) throw Refusal("cannot write " + part + ", where the ranks should meet (--id-file)");
  std::filesystem::rename(part, path);
}

ncclUniqueId read_id(const std::string& path) {
  constexpr std::chrono::seconds kPatience{120};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  ncclUniqueId id;
  while (true) {
    std::ifstream in(path, std::ios::binary);
    if (in.read(id.internal, sizeof id.internal)) return id;
    if (std::chrono::steady_clock::now() > deadline)
      throw Refusal("rank 0 has not written " + path + " (--id-file) for two minutes");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

ncclUniqueId make_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

ncclUniqueId meet(const Launch& launch, const Options& options) {
  if (launch.as == Launch::As::threads || launch.world == 1 || std::getenv("NCCL_COMM_ID") != nullptr) return make_id();
  ncclUniqueId id{};
  if (launch.rank == 0) id = make_id();
  if (launch.as == Launch::As::mpi && options.id_file.empty()) {
    mpi_broadcast(id.internal, sizeof id.internal);
  } else if (launch.rank == 0) {
    write_id(options.id_file, id);
  } else {
    id = read_id(options.id_file);
  }
  return id;
}

void use_device(int device) {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  check(cudaSetDevice(device % devices), "cudaSetDevice");
}

// Threads that share a device wait for each other where processes do not; so the host runtime gets one for each.
void ask_for_devices(int ranks) {
  const char* set = std::getenv("LOCKSTEP_HOST_DEVICES");
  if (set == nullptr && ranks > 8) setenv("LOCKSTEP_HOST_DEVICES", std::to_string(ranks).c_str(), 0);
}

int run_threads(int ranks, const RankBody& body, const ncclUniqueId& id) {
  std::vector<int> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      use_device(rank);
      results[static_cast<size_t>(rank)] = body(rank, id);
    });
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(results.begin(), results.end());
}

}  // namespace

Launch find_launch(const Options& options) {
  const auto rank = number_in("RANK"), world = number_in("WORLD_SIZE");
  Launch launch;
  if (rank && world) {
    launch = by_environment(*rank, *world, options);
  } else if (const auto size = first_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})) {
    const int mine = first_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}).value_or(0);
    if (std::string why; mpi_start(launch.rank, launch.world, why)) {
      launch.as = Launch::As::mpi;
      if (launch.world != *size)
        throw Refusal("the launcher started " + std::to_string(*size) + " ranks, but MPI knows of " +
                      std::to_string(launch.world) + ": it was built for another launcher");
      launch.device = first_number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}).value_or(launch.rank);
    } else if (meeting_place(options) || *size == 1) {
      launch = by_environment(mine, *size, options);
    } else {
      throw Refusal("started by mpirun, but " + why + "; set NCCL_COMM_ID=host:port or give --id-file");
    }
  } else {
    launch.world = ranks_of_layout(options);
  }
  if (options.ranks > 0 && options.ranks != launch.world)
    throw Refusal("--ranks " + std::to_string(options.ranks) + ", but the launcher started " +
                  std::to_string(launch.world) + " ranks");
  return launch;
}

int run_ranks(const Launch& launch, const Options& options, const RankBody& body) {
  if (launch.as == Launch::As::threads) {
    ask_for_devices(launch.world);
    return run_threads(launch.world, body, meet(launch, options));
  }
  use_device(launch.device);
  const int result = body(launch.rank, meet(launch, options));
  if (launch.as == Launch::As::mpi) mpi_finish();
  if (launch.rank == 0 && !options.id_file.empty()) std::filesystem::remove(options.id_file);
  return result;
}

}  // namespace train
