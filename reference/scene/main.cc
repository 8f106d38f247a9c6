// SPDX-License-Identifier: MIT
//
// lockstep-scene FILE: plays a scenario file (docs/scenarios.md) as a real NCCL program of as many ranks. Started under
// `lockstep run`, it is traced like anybody's job; alone, it simply does, or hangs, as the file says.

#include <cstdio>
#include <cstring>
#include <string>

#include "reference/scene/board.h"
#include "reference/scene/launch.h"
#include "tools/scenario/lexer.h"
#include "tools/scenario/scenario.h"

namespace {

using lockstep::scenario::Scenario;
using lockstep::scene::PlayOptions;

constexpr const char* kUsage =
    "usage: lockstep-scene FILE [--permute SEED] [--shift K] [--ranks N] [--ranks-as processes|threads] "
    "[--print-ranks]\n"
    "\n"
    "Plays a scenario file as an NCCL program, one process or thread a rank.\n"
    "  --permute SEED   renumber the ranks; 0 keeps them\n"
    "  --shift K        put K agreed steps in front\n"
    "  --ranks N        that many, where the file says whose program further ranks get\n"
    "  --ranks-as HOW   processes or threads, whatever the file says\n"
    "  --print-ranks    print the world rank of each rank of the scene, and do nothing else\n"
    "\n"
    "example: lockstep run --host -- lockstep-scene tests/hangs/missing-call.hang --permute 7 --shift 2\n";

struct Arguments {
  std::string file, ranks_as;
  PlayOptions play;
  bool help = false, print_ranks = false;
};

int complain(const std::string& sentence) {
  std::fprintf(stderr, "lockstep-scene: %s\n", sentence.c_str());
  return 2;
}

// Empty when all is well, else what is wrong.
std::string read_arguments(int argc, char** argv, Arguments& out) {
  for (int i = 1; i < argc; i++) {
    std::string arg = argv[i];
    auto number = [&](int64_t& value) {
      return i + 1 < argc && lockstep::scenario::parse_number(argv[++i], value) && value >= 0;
    };
    int64_t value = 0;
    if (arg == "--help" || arg == "-h") {
      out.help = true;
    } else if (arg == "--print-ranks") {
      out.print_ranks = true;
    } else if (arg == "--ranks-as") {
      out.ranks_as = i + 1 < argc ? argv[++i] : "";
      if (out.ranks_as != "threads" && out.ranks_as != "processes")
        return "expected threads or processes after --ranks-as";
    } else if (arg == "--permute" || arg == "--shift" || arg == "--rank" || arg == "--board" || arg == "--launcher" ||
               arg == "--ranks") {
      if (!number(value)) return "expected a number after " + arg;
      if (arg == "--permute")
        out.play.seed = static_cast<uint64_t>(value);
      else if (arg == "--shift")
        out.play.shift = static_cast<int>(value);
      else if (arg == "--rank")
        out.play.rank = static_cast<int>(value);
      else if (arg == "--ranks")
        out.play.ranks = static_cast<int>(value);
      else if (arg == "--board")
        out.play.board_fd = static_cast<int>(value);
      else
        out.play.launcher_pid = static_cast<int>(value);
    } else if (arg.rfind("-", 0) == 0 || !out.file.empty()) {
      return "\"" + arg + "\" is not understood; see lockstep-scene --help";
    } else {
      out.file = arg;
    }
  }
  return out.file.empty() && !out.help ? "expected a scenario file; see lockstep-scene --help" : "";
}

std::string check_fit(const Scenario& scenario, bool threads) {
  if (threads && !(scenario.untraced.empty() && scenario.rank_environment.empty()))
    return scenario.path +
           ": untraced ranks and settings of single ranks need processes of their own, so they cannot be threads";
  lockstep::scene::BoardPlan plan = lockstep::scene::plan_board(scenario);
  if (plan.ids > lockstep::scene::kMaxIds || plan.flags.size() > lockstep::scene::kMaxFlags)
    return scenario.path + ": more than " + std::to_string(lockstep::scene::kMaxIds) + " communicators or " +
           std::to_string(lockstep::scene::kMaxFlags) + " flags; a scene should be smaller";
  return "";
}

int print_ranks(const Scenario& scenario, uint64_t seed) {
  std::string line;
  for (int rank : lockstep::scenario::permutation(seed, scenario.ranks))
    line += (line.empty() ? "" : " ") + std::to_string(rank);
  std::printf("%s\n", line.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  std::string wrong = read_arguments(argc, argv, arguments);
  if (!wrong.empty()) return complain(wrong);
  if (arguments.help) return std::fputs(kUsage, stdout) < 0;

  lockstep::Result<Scenario> scenario = lockstep::scenario::load_scenario(arguments.file);
  if (!scenario) return complain(scenario.error());
  if (arguments.play.ranks > lockstep::scenario::kMaxRanks)
    return complain("expected at most " + std::to_string(lockstep::scenario::kMaxRanks) + " after --ranks");
  lockstep::scenario::widen_to(*scenario, arguments.play.ranks);
  bool threads = arguments.ranks_as.empty() ? scenario->threads : arguments.ranks_as == "threads";
  wrong = check_fit(*scenario, threads);
  if (!wrong.empty()) return complain(wrong);
  if (arguments.print_ranks) return print_ranks(*scenario, arguments.play.seed);

  if (arguments.play.rank >= scenario->ranks) return complain(arguments.file + " has no such rank");
  if (arguments.play.rank >= 0) return lockstep::scene::play_one(*scenario, arguments.play);
  if (threads) return lockstep::scene::launch_threads(*scenario, arguments.play);
  return lockstep::scene::launch_processes(*scenario, arguments.play);
}
