// SPDX-License-Identifier: MIT
//
// From addresses to names.
//
// First what the trace itself says: names are written into it when a snapshot is taken, so that a copied folder still
// reads. Then the files on this machine, by libdw, if their build id is the one the trace recorded. Else module+offset.
// Modules are opened once for a whole job, since all ranks run the same ones.
//
// Names in a trace are those of the functions that are really there. Those inlined into them are told where debug
// information is at hand: in the file itself, where the distribution puts it, or in a folder the user names.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "interpose/trace/reader.h"
#include "tools/judge/finding.h"

namespace lockstep {

class Symbolizer {
 public:
  // `debug_dir`: where else debug information is looked for, by build id (DIR/.build-id/ab/cdef.debug) or by the file's
  // name (DIR/libfoo.so, DIR/libfoo.so.debug, also below DIR by its whole path).
  explicit Symbolizer(std::string debug_dir = "");
  ~Symbolizer();

  // `exact`: pc is the instruction itself; else a return address, and the call before it is meant.
  Frame name(const trace::TraceFile& file, uint64_t pc, bool exact);

  // Innermost first, inlined functions as frames of their own. `innermost_exact` for snapshots.
  std::vector<Frame> name_all(const trace::TraceFile& file, const std::vector<uint64_t>& pcs, bool innermost_exact);

 private:
  struct Library;
  Library* library(const std::string& path, const std::string& build_id);
  const Library* with_debug_info(const trace::Module& module);
  std::vector<Frame> frames_at(const trace::TraceFile& file, uint64_t pc, bool exact);
  std::string debug_dir_;
  std::map<std::string, std::unique_ptr<Library>> libraries_;
};

// "next_batch (train.cc:88)", "step (libfoo.so)", "libfoo.so+0x1a2b"
std::string frame_text(const Frame& frame);
// As in `diagnose --json`: "train.cc:88 next_batch"
std::string frame_json(const Frame& frame);

// Drops what is the same in every stack and says nothing: the shim, the C library's thread start, NCCL's own depths.
std::vector<Frame> without_noise(const std::vector<Frame>& frames);

// The first frame, from the inside, that is the program's own: not libc, the shim, NCCL or CUDA.
const Frame* users_frame(const std::vector<Frame>& frames);

std::string demangled(const char* name);

// Adds Symbol records (in memory only) for the pcs of all snapshots that have none yet, so that rules can read names.
void add_missing_symbols(trace::TraceFile& file, Symbolizer& symbolizer);

}  // namespace lockstep
