// SPDX-License-Identifier: MIT
//
// A scenario: what each rank of a small NCCL job does, and the verdict it must get. Plain values, filled from a *.hang
// file by parse_scenario() and read by two programs that must agree on every detail: the player (reference/scene) acts
// it out as a real NCCL program, and `lockstep scenario` compares the verdict with what the file expects.
//
// Ranks in a file are ranks of the scene. A run may permute them, so that no verdict can lean on rank 0 being first,
// and may put extra agreed steps in front, so that none can lean on call 0; both are functions of a number, below, so
// that player and judge need exchange nothing but that number. docs/scenarios.md shows the format by example.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interpose/abi/functions.h"
#include "interpose/trace/result.h"

namespace lockstep::scenario {

inline constexpr double kForever = std::numeric_limits<double>::infinity();
inline constexpr int kMaxRanks = 256;
inline constexpr const char* kWorld = "world";

// Where a rank asks to be judged: the player makes the file that this variable names, and waits for the second one.
inline constexpr const char* kJudgeVariable = "LOCKSTEP_SCENE_JUDGE";
inline constexpr const char* kJudgedSuffix = ".done";

enum class Verb : uint8_t {
  step,           // number: which one; -1 = the next
  phase,          // name
  sample,         // name, in which {step} and {rank} are replaced
  communicate,    // fn on communicator `name`: a collective, or a send or recv
  group,          // body, between ncclGroupStart and ncclGroupEnd
  stream,         // name: later calls go to this stream
  sync,           // the host waits for stream `name`; empty = the current one
  sync_device,    // the host waits for everything
  graph,          // body, captured and launched `number` times
  stall,          // `seconds` of work on the current stream that the host does not wait for
  sleep,          // seconds
  spin,           // seconds, on the CPU
  tell,           // raises flag `name` for all ranks
  await,          // waits until flag `name` was raised `number` times
  await_end,      // waits until rank `number` of the scene has ended
  await_verdict,  // waits until `lockstep run` has printed a verdict on this job
  judge,          // waits until `lockstep scenario` has asked for the verdict that is compared
  init,           // makes communicator `name`
  destroy,
  finalize,
  abort_comm,
  exit,        // number: status; through exit handlers
  quick_exit,  // number: status; without
  abort,
  segv,
  kill,      // SIGKILL to itself
  stop,      // SIGSTOP to itself
  kill_job,  // SIGKILL to every rank at once
  repeat,    // body, `number` times
  in,        // body, inside the function `name`
  attempt,   // body, in which an error ends nothing
  beside,    // body, on a thread of its own that the rank waits for at its end
  device,    // number: the CUDA device from here on
};

struct Statement {
  Verb verb{};
  int line = 0;
  std::string name;
  abi::Fn fn = abi::Fn::none;
  uint64_t count = 0;
  int dtype = 7;  // float32
  int redop = 0;  // sum
  int rank = -1;  // root or peer, a rank of the scene
  bool in_place = false;
  double seconds = 0;
  int64_t number = 0;
  std::vector<Statement> body;
};

// One name for one communicator, or for several disjoint ones of which each rank is in at most one.
struct Communicator {
  std::string name;
  std::vector<std::vector<int>> groups;  // ranks of the scene; the position is the rank in the communicator
  bool later = false;                    // made by `init` statements only, not at the start
  std::string split_from;                // ncclCommSplit of this one; empty = from its own unique id
  int line = 0;

  const std::vector<int>* group_of(int rank) const;
};

// A mistake of the host runtime on purpose: see docs/host-runtime.md.
struct Fault {
  std::string action;
  int rank = -1;
  int64_t call = 0;               // from 1, of that rank's operations in the scene
  std::vector<std::string> rest;  // KEY=VALUE
};

// What the verdict must be. A field that the file does not mention is not compared.
struct Expectation {
  std::vector<std::string> status;         // any of these
  std::vector<std::string> kind;           // of the first finding: any of these; "none" = there is no finding
  std::vector<std::vector<int>> culprits;  // any of these sets
  std::optional<std::vector<int>> victims;
  std::optional<std::vector<int>> missing;  // ranks without a trace
  std::string comm, op;
  std::optional<uint64_t> seq, step;
  std::optional<uint64_t> edge;    // of a message: its number on the edge,
  std::optional<int> peer;         // the other end,
  std::string direction;           // "send" or "receive"
  std::string frame;               // a function in the stacks of the culprits
  std::string also;                // a kind that one of the later findings must have,
  std::vector<int> also_culprits;  // and whom that one blames, when the file says so
  int line = 0;
};

struct Scenario {
  std::string path, title, source;
  std::string trap;  // the careless reading that would give another verdict; empty = none in particular
  int ranks = 0;
  bool threads = false;  // ranks are threads of one process
  double hang_seconds = 1;
  double deadline = 60;       // seconds after which the run counts as failed
  bool kill_on_hang = true;   // end the job once it has been judged hung
  int widen = -1;             // whose program further ranks may be given, as in a larger job; -1 = nobody's
  std::vector<int> untraced;  // ranks whose process runs without the shim
  std::vector<std::pair<std::string, std::string>> environment;
  std::map<int, std::vector<std::pair<std::string, std::string>>> rank_environment;  // of single ranks
  std::vector<Fault> faults;
  std::vector<Communicator> communicators;       // [0] is world
  std::vector<std::vector<Statement>> programs;  // by rank of the scene
  Expectation expect;

  const Communicator* find(const std::string& name) const;
};

Result<Scenario> parse_scenario(const std::string& path, const std::string& text);
Result<Scenario> load_scenario(const std::string& path);

// The scene in a job of so many ranks: those that are added do what rank `widen` does. Nothing when there are as many.
void widen_to(Scenario& scenario, int ranks);

// Does any rank, alone, what ends its process?
bool ends_processes(const Scenario& scenario);
// Does any rank say when the verdict is to be asked for?
bool asks_for_judge(const Scenario& scenario);

// LOCKSTEP_HOST_FAULT for this permutation and shift; empty without faults.
std::string fault_setting(const Scenario& scenario, const std::vector<int>& world_rank, int shift);

// Reads the text after "expect:"; `where` is "file:line", for errors.
Result<Expectation> parse_expectation(const std::string& where, const std::string& text, int ranks);

// The functions a scene may sit in (`in data_loader_next { ... }`). The player has a real function for each.
const std::vector<std::string>& frame_names();

// World rank of each scene rank: the identity for seed 0, else a permutation that is the same on every machine.
std::vector<int> permutation(uint64_t seed, int ranks);

// How much later call `seq` of a communicator comes when `shift` agreed steps stand in front: each of them makes one
// call on every communicator that exists at the start.
uint64_t shifted_by(const Scenario& scenario, const std::string& comm, int shift);

}  // namespace lockstep::scenario
