// SPDX-License-Identifier: MIT
#include "tools/run/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <filesystem>

#include "tools/run/linking.h"
#include "tools/run/processes.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

std::string from_environment(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::string as_file_name(std::string text) {
  for (char& c : text)
    if (!isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return text.substr(0, 80);
}

Result<std::string> make_folder(const std::string& wanted) {
  std::error_code failed;
  fs::create_directories(wanted, failed);
  if (failed || !fs::is_directory(wanted))
    return Error{fmt::format("{}: cannot make this folder for the traces ({}); name another with --dir", wanted,
                             failed ? failed.message() : "there is a file of that name")};
  const std::string folder = fs::canonical(wanted, failed).string();
  if (failed) return Error{fmt::format("{}: cannot be used as folder for the traces ({})", wanted, failed.message())};
  const std::string probe = fmt::format("{}/.probe-{}", folder, getpid());
  const int fd = open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    return Error{
        fmt::format("{}: cannot write into this folder ({}); name another with --dir", folder, strerror(errno))};
  close(fd);
  unlink(probe.c_str());
  return folder;
}

// ../lib beside this very executable: the build tree and an installation look alike.
Result<std::string> library_folder() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  const fs::path folder = self.parent_path().parent_path() / "lib";
  const fs::path shim = folder / "liblockstep.so";
  if (failed || !fs::exists(shim))
    return Error{fmt::format("{}: the shim was expected there; build or install Lockstep as a whole", shim.string())};
  return folder.string();
}

std::string put_in_front(const std::string& entry, const std::string& list) {
  if (list.empty()) return entry;
  if ((":" + list + ":").find(":" + entry + ":") != std::string::npos) return list;
  return entry + ":" + list;
}

// The loader splits LD_PRELOAD at blanks and colons and LD_LIBRARY_PATH at colons and semicolons, without any quoting.
// So a folder with a blank in its name is searched instead of named, and one with a colon cannot be used at all.
Result<std::string> preload_name(const std::string& folder, std::string& search_path) {
  if (folder.find_first_of(":;") != std::string::npos)
    return Error{fmt::format(
        "{}: the dynamic loader cannot preload from a folder with a colon or semicolon in its name; move Lockstep",
        folder)};
  if (folder.find_first_of(" \t\n") == std::string::npos) return folder + "/liblockstep.so";
  search_path = put_in_front(folder, search_path);
  return std::string("liblockstep.so");
}

// The program and, as it may be a launcher or an interpreter, whatever else of its command line is an ELF program.
// Returns whether one has an RPATH, which the loader searches before LD_LIBRARY_PATH; only a preloaded library of the
// same name comes before that.
Result<bool> check_linking(const std::string& program, const std::vector<std::string>& command) {
  std::vector<std::string> files{program};
  for (size_t i = 1; i < command.size(); ++i)
    if (access(command[i].c_str(), X_OK) == 0) files.push_back(command[i]);
  bool rpath = false;
  for (const std::string& file : files) {
    const std::optional<Linking> linking = linking_of(file);
    if (!linking) continue;
    if (const std::string obstacle = host_obstacle(file, *linking); !obstacle.empty()) return Error{obstacle};
    rpath |= linking->rpath;
  }
  return rpath;
}

// Puts the host runtime where the program will find it.
Result<bool> add_host_runtime(const std::string& libraries, const std::string& program,
                              const std::vector<std::string>& command, std::string& search_path, std::string& preload) {
  const std::string host = libraries + "/lockstep/host";
  if (!fs::exists(host + "/libnccl.so.2"))
    return Error{fmt::format(
        "{}/libnccl.so.2: the host runtime was expected there; build or install Lockstep as a whole", host)};
  search_path = put_in_front(host, search_path);
  const Result<bool> rpath = check_linking(program, command);
  if (!rpath || !*rpath) return rpath;
  if (host.find_first_of(" \t\n") != std::string::npos)
    return Error{
        fmt::format("{}: the program has an RPATH, so the host runtime must be preloaded, which the dynamic "
                    "loader cannot do from a folder with a blank in its name; move Lockstep",
                    host)};
  for (const char* name : {"libcuda.so.1", "libcudart.so.13", "libnccl.so.2"})
    if (preload.find(host + "/" + name) == std::string::npos) preload += ":" + host + "/" + name;
  return true;
}

Result<std::vector<std::pair<std::string, std::string>>> environment_for(const RunOptions& options,
                                                                         const std::string& program,
                                                                         const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> environment;
  Result<std::string> libraries = library_folder();
  if (!libraries) return Error{libraries.error()};
  std::string search_path = from_environment("LD_LIBRARY_PATH");
  const Result<std::string> shim = preload_name(*libraries, search_path);
  if (!shim) return Error{shim.error()};
  std::string preload = put_in_front(*shim, from_environment("LD_PRELOAD"));
  if (options.host) {
    const Result<bool> added = add_host_runtime(*libraries, program, options.command, search_path, preload);
    if (!added) return Error{added.error()};
  }
  environment.emplace_back("LD_PRELOAD", preload);
  if (search_path != from_environment("LD_LIBRARY_PATH")) environment.emplace_back("LD_LIBRARY_PATH", search_path);
  environment.emplace_back("LOCKSTEP_DIR", folder);
  environment.emplace_back("LOCKSTEP_RUN_ID", name_of_run());
  environment.emplace_back("LOCKSTEP_SUPERVISOR", std::to_string(getpid()));
  if (options.hang_seconds) environment.emplace_back("LOCKSTEP_HANG_SECONDS", fmt::format("{}", *options.hang_seconds));
  return environment;
}

// A launcher above several of us gives all of them one name; then they share one folder too.
std::string name_from_launcher() {
  for (const char* name : {"LOCKSTEP_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID"})
    if (const std::string value = from_environment(name); !value.empty() && value != "none") return as_file_name(value);
  if (const std::string job = from_environment("SLURM_JOB_ID");
      !job.empty() && !from_environment("SLURM_PROCID").empty())
    return as_file_name(fmt::format("slurm-{}.{}", job, from_environment("SLURM_STEP_ID")));
  return "";
}

}  // namespace

std::string name_of_run() {
  static const std::string name = [] {
    std::string given = name_from_launcher();
    if (!given.empty()) return given;
    const time_t now = time(nullptr);
    struct tm parts;
    localtime_r(&now, &parts);
    return fmt::format("{:04}{:02}{:02}-{:02}{:02}{:02}-{}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                       parts.tm_hour, parts.tm_min, parts.tm_sec, getpid());
  }();
  return name;
}

Result<Launch> prepare_launch(const RunOptions& options) {
  if (options.command.empty())
    return Error{"no program given; name it after --, as in `lockstep run -- python train.py`"};
  Launch launch;
  launch.command = options.command;
  const std::optional<std::string> program = find_program(options.command[0]);
  if (!program)
    return Error{fmt::format("{}: there is no such program, or it may not be executed", options.command[0])};
  launch.program = *program;

  const std::string inherited = from_environment("LOCKSTEP_DIR");
  const std::string wanted = !options.folder.empty() ? options.folder
                             : !inherited.empty()    ? inherited
                                                     : "lockstep-traces/" + name_of_run();
  Result<std::string> folder = make_folder(wanted);
  if (!folder) return Error{folder.error()};
  launch.folder = *folder;
  auto environment = environment_for(options, launch.program, launch.folder);
  if (!environment) return Error{environment.error()};
  launch.environment = std::move(*environment);
  return launch;
}

}  // namespace lockstep
