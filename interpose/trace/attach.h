// SPDX-License-Identifier: MIT
//
// A supervisor's hand in another process's trace: who watches, how the process ended, and arena records such as snapshots
// taken from outside and the names that belong to their addresses. Everything else in the file is the process's own.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/trace/format.h"
#include "interpose/trace/reader.h"
#include "interpose/trace/result.h"
#include "interpose/trace/writer.h"

namespace lockstep::trace {

class Attachment {
 public:
  static Result<Attachment> open(const std::string& path);
  Attachment(Attachment&& other) noexcept;
  Attachment& operator=(Attachment&& other) noexcept;
  ~Attachment();

  const std::string& path() const { return path_; }
  const FileHeader& header() const { return *trace_->header; }
  const Status& status() const { return *trace_->status; }  // live: it changes under the caller

  void set_watching();
  // The end as the parent saw it. A process whose parent was somebody else is `gone`, with code 0.
  void set_ended(SupervisorState how, int code, uint64_t peak_rss_bytes);

  // False when the arena is full.
  bool add_snapshot(const Snapshot& snapshot);
  bool add_symbol(const Symbol& symbol);
  bool add_module(const Module& module, uint64_t stamp);
  bool add_text(std::string_view text);

 private:
  Attachment() = default;
  void set_supervisor(SupervisorState state, int code, uint64_t peak_rss_bytes);
  bool append(ArenaKind kind, const void* fixed, size_t fixed_size, const void* rest, size_t rest_size);
  std::string path_;
  Trace* trace_ = nullptr;
};

}  // namespace lockstep::trace
