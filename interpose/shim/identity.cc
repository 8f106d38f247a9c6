// SPDX-License-Identifier: MIT
//
// See identity.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/identity.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interpose/abi/nccl.h"
#include "interpose/shim/proc.h"
#include "interpose/shim/real.h"
#include "interpose/shim/recorder.h"
#include "interpose/shim/text.h"
#include "interpose/trace/writer.h"

extern char** environ;

namespace lockstep::shim {
namespace {

// What launchers say of a rank. The innermost launcher comes first: mpirun inside a Slurm allocation inherits Slurm's
// variables of the batch step, which are the same for all its ranks.
struct Launcher {
  trace::RankSource source;
  const char *rank, *size, *local;
};
constexpr Launcher kLaunchers[] = {
    {trace::RankSource::rank, "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {trace::RankSource::ompi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {trace::RankSource::slurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
    {trace::RankSource::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
};

int32_t number_in(const char* name) {
  const char* text = getenv(name);
  uint64_t n;
  if (!text || strlen(text) > 9 || !parse_number(text, n) || *text) return -1;
  return static_cast<int32_t>(n);
}

void find_rank(trace::FileHeader& header) {
  header.rank_source = trace::RankSource::none;
  header.env_rank = header.env_world_size = header.env_local_rank = -1;
  for (const Launcher& launcher : kLaunchers) {
    const int32_t rank = number_in(launcher.rank);
    if (rank < 0) continue;
    header.rank_source = launcher.source;
    header.env_rank = rank;
    header.env_world_size = number_in(launcher.size);
    header.env_local_rank = number_in(launcher.local);
    return;
  }
}

// The text file's first line.
template <size_t N>
void put_file(char (&field)[N], const char* path) {
  if (read_file(path, field, N) < 0) return;
  if (char* end = strchr(field, '\n')) *end = '\0';
}

void put_command(trace::FileHeader& header) {
  char* field = header.command;
  const long n = read_file("/proc/self/cmdline", field, sizeof header.command);
  for (long i = 0; i + 1 < n; i++)
    if (field[i] == '\0') field[i] = ' ';
}

// "pid:[4026531836]"
uint64_t pid_namespace() {
  char link[64];
  const ssize_t n = readlink("/proc/self/ns/pid", link, sizeof link - 1);
  if (n <= 0) return 0;
  link[n] = '\0';
  const char* at = strchr(link, '[');
  uint64_t inode = 0;
  if (at) parse_number(++at, inode);
  return inode;
}

uint32_t nccl_version() {
  using GetVersion = ncclResult_t (*)(int*);
  const auto real = real_as<GetVersion>(copy_in_use(), abi::Fn::GetVersion);
  int version = 0;
  return real && real(&version) == ncclSuccess && version > 0 ? static_cast<uint32_t>(version) : 0;
}

// What does not fit is counted, not cut: half a value would be a wrong one.
constexpr size_t kEnvironmentRoom = 16384, kNoteRoom = 64;
void add_setting(TextBuilder& text, const char* setting, uint64_t& left_out) {
  if (text.size() + strlen(setting) + 1 + kNoteRoom > kEnvironmentRoom)
    left_out++;
  else
    text << "\n" << setting;
}

bool starts_with(const char* text, const char* prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

}  // namespace

void describe_process(trace::FileHeader& header, const Config& config, bool tsc) {
  memset(&header, 0, sizeof header);
  header.pid = getpid();
  header.parent_pid = getppid();
  header.pid_start_ticks = process_times(header.pid).start_ticks;
  header.pid_namespace = pid_namespace();
  put_file(header.boot_id, "/proc/sys/kernel/random/boot_id");
  if (gethostname(header.host, sizeof header.host - 1) != 0 || !header.host[0]) strcpy(header.host, "localhost");
  for (char* c = header.host; *c; c++)
    if (*c == '/') *c = '-';  // it becomes part of a file's name
  const ssize_t n = readlink("/proc/self/exe", header.exe, sizeof header.exe - 1);
  if (n < 0) header.exe[0] = '\0';
  put_command(header);
  find_rank(header);
  trace::put_text(header.run_id, sizeof header.run_id, config.run_id, strlen(config.run_id));
  const int32_t slurm = number_in("SLURM_RESTART_COUNT"), torch = number_in("TORCHELASTIC_RESTART_COUNT");
  header.restart_count = static_cast<uint32_t>(torch > 0 ? torch : slurm > 0 ? slurm : 0);
  header.supervisor_pid = config.supervisor;
  header.clock_source = tsc ? trace::ClockSource::tsc : trace::ClockSource::monotonic_ns;
  header.mode = config.full_mode ? trace::TraceMode::full : trace::TraceMode::ring;
  header.hang_ms = config.hang_ms;
  header.nccl_version = nccl_version();
  const char* path = nccl_path();
  trace::put_text(header.nccl_path, sizeof header.nccl_path, path, strlen(path));
  strcpy(header.lockstep_version, LOCKSTEP_VERSION);
}

void write_environment() {
  constexpr const char* kPrefixes[] = {
      "NCCL_", "LOCKSTEP", "CUDA_VISIBLE_DEVICES=", "CUDA_LAUNCH_BLOCKING=", "CUDA_DEVICE_MAX_CONNECTIONS=", "RANK=",
      "LOCAL_RANK=", "GROUP_RANK=", "NODE_RANK=", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=", "SLURM_JOB_ID=", "SLURM_STEP_ID=",
      "SLURM_PROCID=", "SLURM_LOCALID=", "SLURM_NODEID=", "SLURM_NTASKS=", "SLURM_RESTART_COUNT=", "SLURMD_NODENAME=",
      "OMPI_COMM_WORLD_", "OMPI_MCA_ess_base_jobid=", "PMI_RANK=", "PMI_SIZE=", "PMIX_NAMESPACE=", "PMIX_RANK=",
      "TORCHELASTIC_RUN_ID=", "TORCHELASTIC_RESTART_COUNT=", "MASTER_ADDR=", "MASTER_PORT="};
  static char space[kEnvironmentRoom];  // a thread that makes a communicator may have a small stack
  TextBuilder text(space, sizeof space);
  uint64_t left_out = 0;
  text << "environment";
  for (char** at = environ; at && *at; at++)
    for (const char* prefix : kPrefixes)
      if (starts_with(*at, prefix)) {
        add_setting(text, *at, left_out);
        break;
      }
  if (left_out) text << "\n" << left_out << " more, for which there was no room";
  trace::ArenaHeader* header = trace::arena_reserve(recorder.trace, trace::ArenaKind::text, text.size());
  if (!header) return;
  memcpy(trace::arena_body(header), text.text(), text.size());
  trace::arena_commit(header);
}

}  // namespace lockstep::shim
