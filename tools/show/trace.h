// SPDX-License-Identifier: MIT
//
// `lockstep show FILE.lstrace`: what is in one trace, as text (text.cc) and as JSON (json.cc).

#pragma once

#include <cstddef>
#include <string>

#include "interpose/trace/reader.h"
#include "tools/explain/symbols.h"
#include "tools/job/life.h"

namespace lockstep {

struct ShowOptions {
  std::string file, debug_dir;
  size_t calls = 20;
  bool all = false, modules = false, json = false;
};

void show_trace_as_text(const trace::TraceFile& file, const Life& life, const ShowOptions& options,
                        Symbolizer& symbolizer);
std::string show_trace_as_json(const trace::TraceFile& file, const ShowOptions& options, Symbolizer& symbolizer);

// --- what both say ---
const char* show_state(trace::CommState state);
const char* show_liveness(trace::Liveness liveness);
std::string show_function(uint16_t fn);
std::string show_host_function(uint16_t fn);
// The first of so many that is shown.
size_t first_shown(const ShowOptions& options, size_t count);

}  // namespace lockstep
