// SPDX-License-Identifier: MIT
//
// See modules.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/modules.h"

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interpose/shim/clock.h"
#include "interpose/shim/recorder.h"
#include "interpose/trace/writer.h"

namespace lockstep::shim {
namespace {

// What was written, to tell news. A job with more modules than fit has the excess written once more at each change.
struct Known {
  uintptr_t start, end, name;
  uintptr_t unwind_table;
};
constexpr unsigned kMostKnown = 4096;
Known* known;
unsigned known_count;
unsigned long long last_adds, last_subs;

struct BuildId {
  const uint8_t* bytes = nullptr;
  uint32_t size = 0;
};

BuildId build_id(const struct dl_phdr_info* info) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    const char* end = at + header.p_memsz;
    const size_t align = header.p_align == 8 ? 8 : 4;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
      const char* name = at + sizeof *note;
      const char* body = name + (note->n_namesz + align - 1) / align * align;
      const char* next = body + (note->n_descsz + align - 1) / align * align;
      if (next > end || next <= at) break;
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0)
        return {reinterpret_cast<const uint8_t*>(body), note->n_descsz};
      at = next;
    }
  }
  return {};
}

void write_range(const struct dl_phdr_info* info, uintptr_t start, uintptr_t end, const char* path) {
  using trace::ModuleBody;
  const BuildId id = build_id(info);
  const size_t length = strlen(path);
  constexpr size_t kFixed = offsetof(ModuleBody, path);
  trace::ArenaHeader* header = trace::arena_reserve(recorder.trace, trace::ArenaKind::module_, kFixed + length);
  if (!header) return;
  auto* body = static_cast<ModuleBody*>(trace::arena_body(header));
  body->bias = info->dlpi_addr;
  body->start = start;
  body->end = end;
  body->stamp = stamp_now(recorder.tsc);
  body->build_id_size = id.size < sizeof body->build_id ? id.size : sizeof body->build_id;
  memset(body->build_id, 0, sizeof body->build_id);
  if (id.bytes) memcpy(body->build_id, id.bytes, body->build_id_size);
  body->path_size = static_cast<uint32_t>(length);
  memcpy(reinterpret_cast<char*>(body) + kFixed, path, length);
  trace::arena_commit(header);
}

bool is_new(const Known& module) {
  for (unsigned i = 0; i < known_count; i++)
    if (known[i].start == module.start && known[i].end == module.end && known[i].name == module.name) return false;
  if (known_count < kMostKnown) known[known_count++] = module;
  return true;
}

uintptr_t unwind_table(const struct dl_phdr_info* info) {
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME) return info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
  return 0;
}

const char* main_path(char (&space)[512]) {
  const ssize_t n = readlink("/proc/self/exe", space, sizeof space - 1);
  space[n > 0 ? n : 0] = '\0';
  return space;
}

int visit(struct dl_phdr_info* info, size_t size, void* changed) {
  if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs) {
    if (info->dlpi_adds == last_adds && info->dlpi_subs == last_subs && !*static_cast<bool*>(changed)) return 1;
    last_adds = info->dlpi_adds;
    last_subs = info->dlpi_subs;
    *static_cast<bool*>(changed) = true;
  }
  char space[512];
  const bool main_program = !info->dlpi_name || !*info->dlpi_name;
  const char* path = main_program ? main_path(space) : info->dlpi_name;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
    const uintptr_t start = info->dlpi_addr + header.p_vaddr, end = start + header.p_memsz;
    // A library unloaded and another loaded in its place has another name string.
    if (is_new({start, end, reinterpret_cast<uintptr_t>(info->dlpi_name), unwind_table(info)}))
      write_range(info, start, end, path);
  }
  return 0;
}

}  // namespace

void write_modules() {
  if (!known) {
    void* space = mmap(nullptr, kMostKnown * sizeof(Known), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return;
    known = static_cast<Known*>(space);
  }
  bool changed = false;
  dl_iterate_phdr(visit, &changed);
}

// The newest first: a library may have been unloaded and another loaded in its place.
static const Known* module_of(uint64_t pc) {
  for (unsigned i = known_count; i-- > 0;)
    if (pc >= known[i].start && pc < known[i].end) return &known[i];
  return nullptr;
}

uint64_t unwind_table_of(uint64_t pc) {
  const Known* module = module_of(pc);
  return module ? module->unwind_table : 0;
}

bool in_known_code(uint64_t pc) { return module_of(pc) != nullptr; }

void forget_modules() {
  known_count = 0;
  last_adds = last_subs = 0;
}

}  // namespace lockstep::shim
