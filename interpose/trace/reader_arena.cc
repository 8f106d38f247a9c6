// SPDX-License-Identifier: MIT
//
// The arena, from bytes back to modules, snapshots, symbols and texts. Stacks stay where they are and are looked up by
// reference, since most are never asked for.
//
// A writer stores a record's size first and its state last. So a record in the making, or one whose writer was killed,
// is stepped over by its size; only where even the size is missing is the next record found by looking for a committed
// header, eight bytes at a time.

#include <algorithm>
#include <cstring>

#include "interpose/trace/reader_parts.h"

namespace lockstep::trace {
namespace detail {
namespace {

constexpr uint64_t kMostArenaBytes = 1ull << 30;  // more than any writer makes; bounds what a hostile file can cost
constexpr uint64_t kFirstRecord = 8;              // so that reference 0 means none

struct Piece {
  ArenaKind kind = ArenaKind::none;
  bool committed = false;
  uint32_t size = 0;  // with header; 0 = no record here
  const uint8_t* body = nullptr;
  size_t body_size = 0;
};

Piece piece_at(const std::vector<uint8_t>& arena, uint64_t offset) {
  Piece piece;
  if (offset % 8 != 0 || offset + sizeof(ArenaHeader) > arena.size()) return piece;
  uint32_t size;
  uint16_t kind, state;
  std::memcpy(&size, &arena[offset], 4);
  std::memcpy(&kind, &arena[offset + 4], 2);
  std::memcpy(&state, &arena[offset + 6], 2);
  if (size < sizeof(ArenaHeader) || size % 8 != 0 || size > arena.size() - offset) return piece;
  piece.kind = static_cast<ArenaKind>(kind);
  piece.committed = state == kArenaCommitted;
  piece.size = size;
  piece.body = &arena[offset] + sizeof(ArenaHeader);
  piece.body_size = size - sizeof(ArenaHeader);
  return piece;
}

uint64_t next_committed(const std::vector<uint8_t>& arena, uint64_t offset) {
  for (; offset + sizeof(ArenaHeader) <= arena.size(); offset += 8) {
    const Piece piece = piece_at(arena, offset);
    if (piece.committed && piece.size && piece.kind != ArenaKind::none && piece.kind <= ArenaKind::symbol) break;
  }
  return offset;
}

// The fixed part of a body, copied; false when the record is too short for it.
template <class T>
bool take(const Piece& piece, size_t fixed, T* out) {
  if (piece.body_size < fixed) return false;
  std::memcpy(static_cast<void*>(out), piece.body, fixed);
  return true;
}

std::string chars(const Piece& piece, size_t offset, size_t size) {
  return std::string(reinterpret_cast<const char*>(piece.body) + offset, size);
}

bool add_module(const Piece& piece, TraceFile& out) {
  constexpr size_t kFixed = offsetof(ModuleBody, path);
  alignas(ModuleBody) unsigned char space[sizeof(ModuleBody)] = {};
  auto* body = reinterpret_cast<ModuleBody*>(space);
  if (!take(piece, kFixed, body) || body->path_size > piece.body_size - kFixed || body->build_id_size > 32)
    return false;
  Module module{body->bias, body->start, body->end, "", chars(piece, kFixed, body->path_size)};
  for (uint32_t i = 0; i < body->build_id_size; i++) {
    constexpr char digits[] = "0123456789abcdef";
    module.build_id += digits[body->build_id[i] >> 4];
    module.build_id += digits[body->build_id[i] & 15];
  }
  out.modules.push_back(std::move(module));
  return true;
}

std::vector<uint64_t> words(const Piece& piece, size_t offset, size_t count) {
  std::vector<uint64_t> out(count);
  if (count) std::memcpy(out.data(), piece.body + offset, count * 8);
  return out;
}

bool add_snapshot(const Piece& piece, TraceFile& out) {
  constexpr size_t kFixed = offsetof(SnapshotBody, pc);
  alignas(SnapshotBody) unsigned char space[sizeof(SnapshotBody)] = {};
  auto* body = reinterpret_cast<SnapshotBody*>(space);
  if (!take(piece, kFixed, body) || body->depth > (piece.body_size - kFixed) / 8) return false;
  Snapshot snapshot;
  snapshot.when = {body->mono_ns, body->wall_ns};
  snapshot.round = body->round;
  snapshot.tid = body->tid;
  snapshot.source = static_cast<SnapshotSource>(body->source);
  snapshot.state = body->state;
  snapshot.why = body->why;
  snapshot.thread_name = text_of(body->thread_name);
  snapshot.wait_channel = text_of(body->wait_channel);
  snapshot.pcs = words(piece, kFixed, body->depth);
  out.snapshots.push_back(std::move(snapshot));
  return true;
}

bool add_symbol(const Piece& piece, TraceFile& out) {
  constexpr size_t kFixed = offsetof(SymbolBody, text);
  alignas(SymbolBody) unsigned char space[sizeof(SymbolBody)] = {};
  auto* body = reinterpret_cast<SymbolBody*>(space);
  if (!take(piece, kFixed, body)) return false;
  const size_t room = piece.body_size - kFixed;
  if (body->name_size > room || body->file_size > room - body->name_size) return false;
  out.symbols.push_back({body->pc, body->offset, chars(piece, kFixed, body->name_size),
                         chars(piece, kFixed + body->name_size, body->file_size), body->line});
  return true;
}

bool add_text(const Piece& piece, TraceFile& out) {
  std::string text = chars(piece, 0, piece.body_size);
  while (!text.empty() && text.back() == '\0') text.pop_back();  // padding
  out.texts.push_back(std::move(text));
  return true;
}

bool add(const Piece& piece, TraceFile& out) {
  switch (piece.kind) {
    case ArenaKind::module_: return add_module(piece, out);
    case ArenaKind::snapshot: return add_snapshot(piece, out);
    case ArenaKind::symbol: return add_symbol(piece, out);
    case ArenaKind::text: return add_text(piece, out);
    default: return true;  // stacks are looked up by reference; newer kinds are skipped
  }
}

}  // namespace

void read_arena(const InputFile& file, const Extent& arena, uint64_t used, TraceFile& out) {
  out.arena.resize(static_cast<size_t>(std::min({used, arena.size, kMostArenaBytes})));
  out.arena.resize(file.read(arena.offset, out.arena.data(), out.arena.size()));
  uint64_t malformed = 0;
  for (uint64_t at = kFirstRecord; at + sizeof(ArenaHeader) <= out.arena.size();) {
    const Piece piece = piece_at(out.arena, at);
    if (piece.size == 0) {
      at = next_committed(out.arena, at + 8);
      continue;
    }
    if (piece.committed && !add(piece, out)) malformed++;
    at += piece.size;
  }
  if (malformed)
    out.problems.push_back(out.path + ": " + std::to_string(malformed) +
                           " records of the arena claim more than they hold and were left out");
}

}  // namespace detail

std::vector<uint64_t> TraceFile::stack(StackRef ref) const {
  constexpr size_t kFixed = offsetof(StackBody, pc);
  if (ref == 0) return {};
  const detail::Piece piece = detail::piece_at(arena, uint64_t{ref} * 8);
  if (!piece.committed || piece.kind != ArenaKind::stack || piece.body_size < kFixed) return {};
  uint32_t depth;
  std::memcpy(&depth, piece.body + offsetof(StackBody, depth), 4);
  if (depth > (piece.body_size - kFixed) / 8) return {};
  return detail::words(piece, kFixed, depth);
}

}  // namespace lockstep::trace
