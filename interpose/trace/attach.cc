// SPDX-License-Identifier: MIT
//
// See attach.h.

#include "interpose/trace/attach.h"

#include <string.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::trace {
namespace {

int64_t wall_now() {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void put(char* field, size_t size, const std::string& text) { put_text(field, size, text.data(), text.size()); }

}  // namespace

Result<Attachment> Attachment::open(const std::string& path) {
  Attachment out;
  out.path_ = path;
  out.trace_ = new Trace{};
  const Failure failure = attach(*out.trace_, path.c_str());
  if (failure.what)
    return Error{path + ": could not " + failure.what + ": " +
                 (failure.error == EPROTO ? "its format is not the one this lockstep writes"
                                          : strerror(failure.error))};
  return out;
}

Attachment::Attachment(Attachment&& other) noexcept
    : path_(std::move(other.path_)), trace_(std::exchange(other.trace_, nullptr)) {}

Attachment& Attachment::operator=(Attachment&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(trace_, other.trace_);
  return *this;
}

Attachment::~Attachment() {
  if (trace_) unmap(*trace_);
  delete trace_;
}

void Attachment::set_watching() { set_supervisor(SupervisorState::watching, 0, 0); }

void Attachment::set_ended(SupervisorState how, int code, uint64_t peak_rss_bytes) {
  set_supervisor(how, code, peak_rss_bytes);
}

void Attachment::set_supervisor(SupervisorState state, int code, uint64_t peak_rss_bytes) {
  SupervisorRecord& record = trace_->status->supervisor;
  record.code = code;
  record.wall_ns = wall_now();
  record.peak_rss_bytes = peak_rss_bytes;
  record.state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

bool Attachment::append(ArenaKind kind, const void* fixed, size_t fixed_size, const void* rest, size_t rest_size) {
  ArenaHeader* header = arena_reserve(*trace_, kind, fixed_size + rest_size);
  if (!header) return false;
  auto* body = static_cast<uint8_t*>(arena_body(header));
  if (fixed_size) std::memcpy(body, fixed, fixed_size);
  if (rest_size) std::memcpy(body + fixed_size, rest, rest_size);
  arena_commit(header);
  return true;
}

bool Attachment::add_snapshot(const Snapshot& snapshot) {
  alignas(SnapshotBody) unsigned char space[sizeof(SnapshotBody)] = {};
  auto* body = reinterpret_cast<SnapshotBody*>(space);
  body->wall_ns = snapshot.when.wall_ns;
  body->mono_ns = snapshot.when.mono_ns;
  body->round = snapshot.round;
  body->tid = snapshot.tid;
  body->source = static_cast<uint16_t>(snapshot.source);
  body->state = snapshot.state;
  body->why = snapshot.why;
  put(body->thread_name, sizeof body->thread_name, snapshot.thread_name);
  put(body->wait_channel, sizeof body->wait_channel, snapshot.wait_channel);
  body->depth = static_cast<uint32_t>(snapshot.pcs.size());
  return append(ArenaKind::snapshot, body, offsetof(SnapshotBody, pc), snapshot.pcs.data(), snapshot.pcs.size() * 8);
}

bool Attachment::add_symbol(const Symbol& symbol) {
  alignas(SymbolBody) unsigned char space[sizeof(SymbolBody)] = {};
  auto* body = reinterpret_cast<SymbolBody*>(space);
  body->pc = symbol.pc;
  body->offset = symbol.offset;
  body->line = symbol.line;
  body->name_size = static_cast<uint32_t>(symbol.function.size());
  body->file_size = static_cast<uint32_t>(symbol.file.size());
  const std::string text = symbol.function + symbol.file;
  return append(ArenaKind::symbol, body, offsetof(SymbolBody, text), text.data(), text.size());
}

bool Attachment::add_module(const Module& module, uint64_t stamp) {
  alignas(ModuleBody) unsigned char space[sizeof(ModuleBody)] = {};
  auto* body = reinterpret_cast<ModuleBody*>(space);
  body->bias = module.bias;
  body->start = module.start;
  body->end = module.end;
  body->stamp = stamp;
  body->build_id_size = static_cast<uint32_t>(std::min<size_t>(module.build_id.size() / 2, sizeof body->build_id));
  const auto digit = [](char c) { return c >= 'a' ? c - 'a' + 10 : c - '0'; };
  for (uint32_t i = 0; i < body->build_id_size; i++)
    body->build_id[i] = static_cast<uint8_t>(digit(module.build_id[2 * i]) << 4 | digit(module.build_id[2 * i + 1]));
  body->path_size = static_cast<uint32_t>(module.path.size());
  return append(ArenaKind::module_, body, offsetof(ModuleBody, path), module.path.data(), module.path.size());
}

bool Attachment::add_text(std::string_view text) {
  return append(ArenaKind::text, nullptr, 0, text.data(), text.size());
}

}  // namespace lockstep::trace
