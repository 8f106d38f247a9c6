// SPDX-License-Identifier: MIT

#include "reference/train/run/launch.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "reference/train/core/comm.h"
#include "reference/train/run/id_file.h"
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

bool is_host_and_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  unsigned port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, port);
  if (error != std::errc{} || stop != end || port < 1 || port > 65535) return false;
  if (host.front() == '[') return host.size() > 2 && host.back() == ']';  // an IPv6 address
  return host.find_first_of(":[] \t") == std::string::npos;
}

[[noreturn]] void refuse_meeting_name() {
  std::string name = std::getenv("NCCL_COMM_ID");
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 127; }, '?');  // a terminal's
  refuse("NCCL_COMM_ID is \"", name,
         "\", but must be host:port of rank 0's machine, such as 10.0.0.1:29500 or [fe80::1]:29500: set it so on all "
         "ranks, or unset it and give --id-file");
}

// NCCL reads this variable itself and takes an empty one for a name. Here it is as if it were not set, as every empty
// variable is.
void check_meeting_name() {
  const char* name = std::getenv("NCCL_COMM_ID");
  if (name == nullptr) return;
  if (*name == '\0')
    unsetenv("NCCL_COMM_ID");
  else if (!is_host_and_port(name))
    refuse_meeting_name();
}

bool meeting_place(const Options& options) {
  return std::getenv("NCCL_COMM_ID") != nullptr || !options.id_file.empty();
}

// All threads of this process.
int ranks_of_layout(const Options& options) {
  constexpr int kMostThreads = 1024;
  const int world = std::max(options.shape.dp, 1) * options.shape.pp * options.shape.cp * options.shape.tp;
  if (options.ranks == 0 && world > kMostThreads)
    refuse("dp x pp x cp x tp = ", world, " ranks are more than the ", kMostThreads,
           " threads of one process that there can be: start them as processes (mpirun)");
  return options.ranks > 0 ? options.ranks : world;
}

// Of all processes on this machine; 1 where nobody says it.
int ranks_here(int world) {
  const int here = first_number({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}).value_or(1);
  return std::clamp(here, 1, world);
}

Launch by_environment(int rank, int world, const Options& options) {
  if (rank >= world)
    throw Refusal("RANK = " + std::to_string(rank) + " is not below WORLD_SIZE = " + std::to_string(world));
  if (world > 1 && !meeting_place(options))
    throw Refusal(
        "the environment says that this is one of several ranks, but not where they meet: set NCCL_COMM_ID=host:port, "
        "or give --id-file FILE in a folder they share");
  return {Launch::As::environment, rank, world,
          first_number({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}).value_or(rank),
          ranks_here(world)};
}

// Threads that share a device wait for each other where processes do not; so the host runtime gets one for each, before
// anything calls it.
void ask_for_devices(int ranks) {
  const char* set = std::getenv("LOCKSTEP_HOST_DEVICES");
  if (set == nullptr && ranks > 8) setenv("LOCKSTEP_HOST_DEVICES", std::to_string(ranks).c_str(), 0);
}

ncclUniqueId make_id() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result == ncclInvalidArgument && std::getenv("NCCL_COMM_ID") != nullptr) refuse_meeting_name();  // no such host
  check(result, "ncclGetUniqueId");
  return id;
}

bool needs_no_meeting(const Launch& launch) {
  return launch.as == Launch::As::threads || launch.world == 1 || std::getenv("NCCL_COMM_ID") != nullptr;
}

ncclUniqueId meet(const Launch& launch, const Options& options) {
  if (needs_no_meeting(launch)) return make_id();
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
  check_meeting_name();
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
      launch.here = ranks_here(launch.world);
    } else if (meeting_place(options) || *size == 1) {
      launch = by_environment(mine, *size, options);
    } else {
      throw Refusal("started by mpirun, but " + why + "; set NCCL_COMM_ID=host:port or give --id-file");
    }
  } else {
    launch.here = launch.world = ranks_of_layout(options);
    ask_for_devices(launch.world);
  }
  if (options.ranks > 0 && options.ranks != launch.world)
    throw Refusal("--ranks " + std::to_string(options.ranks) + ", but the launcher started " +
                  std::to_string(launch.world) + " ranks");
  return launch;
}

int run_ranks(const Launch& launch, const Options& options, const RankBody& body) {
  if (launch.as == Launch::As::threads) return run_threads(launch.world, body, meet(launch, options));
  use_device(launch.device);
  const int result = body(launch.rank, meet(launch, options));
  if (launch.as == Launch::As::mpi) mpi_finish();
  if (launch.rank == 0 && !options.id_file.empty() && !needs_no_meeting(launch))
    std::filesystem::remove(options.id_file);
  return result;
}

}  // namespace train
