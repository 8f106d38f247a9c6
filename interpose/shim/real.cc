// SPDX-License-Identifier: MIT
//
// See real.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sched.h>
#include <string.h>

#include "interpose/abi/host_functions.h"
#include "interpose/shim/report.h"
#include "interpose/shim/text.h"

namespace lockstep::shim {

std::atomic<void*> real_functions[kCopies][kMostFunctions];
std::atomic<void*> real_host_functions[abi::kHostRows];
CodeRange nccl_code[kCopies];
std::atomic<unsigned> nccl_copies{1};
CodeRange own_code;

namespace {

constexpr bool ids_fit() {
  for (const abi::FunctionInfo& f : abi::kFunctions)
    if (static_cast<unsigned>(f.fn) >= kMostFunctions) return false;
  return true;
}
static_assert(ids_fit());

struct Search {
  uintptr_t address;
  uintptr_t start, end;
};

int find_segment(struct dl_phdr_info* info, size_t, void* with) {
  auto* search = static_cast<Search*>(with);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
    const uintptr_t start = info->dlpi_addr + header.p_vaddr, end = start + header.p_memsz;
    if (search->address < start || search->address >= end) continue;
    search->start = start;
    search->end = end;
    return 1;
  }
  return 0;
}

Search segment_of(const void* address) {
  Search search = {reinterpret_cast<uintptr_t>(address), 0, 0};
  dl_iterate_phdr(find_segment, &search);
  return search;
}

void set_range(CodeRange& range, const Search& found) {
  range.end.store(found.end, std::memory_order_relaxed);
  range.start.store(found.start, std::memory_order_release);
}

void* usable(void* found) {
  return found && !inside(own_code, reinterpret_cast<uintptr_t>(found)) ? found : nullptr;
}

}  // namespace

void know_own_code() {
  if (own_code.start.load(std::memory_order_relaxed) == 0)
    set_range(own_code, segment_of(reinterpret_cast<const void*>(&find_real)));
}

void* find_named(const char* name) {
  if (void* found = usable(find_symbol(RTLD_NEXT, name))) return found;
  // The handle is kept, so that what we remember stays mapped.
  void* library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY);
  return library ? usable(find_symbol(library, name)) : nullptr;
}

namespace {

std::atomic<uint32_t> copying;

// In a copy that some function is known of: by the library it is in.
void* find_beside(unsigned copy, const char* name) {
  for (const auto& known : real_functions[copy]) {
    Dl_info info;
    void* function = known.load(std::memory_order_relaxed);
    if (!function || !dladdr(function, &info) || !info.dli_fname) continue;
    void* library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    return library ? usable(find_symbol(library, name)) : nullptr;
  }
  return nullptr;
}

}  // namespace

void* find_real(unsigned copy, abi::Fn fn) {
  const int saved = errno;
  know_own_code();
  Text<64> name;
  name << "nccl" << abi::find_function(fn)->name;
  void* found = copy == 0 ? find_named(name.text()) : find_beside(copy, name.text());
  if (found) {
    if (copy == 0 && nccl_code[0].start.load(std::memory_order_acquire) == 0)
      set_range(nccl_code[0], segment_of(found));
    real_functions[copy][static_cast<unsigned>(fn)].store(found, std::memory_order_release);
  }
  errno = saved;
  return found;
}

unsigned other_copy_around(uintptr_t address) {
  const unsigned copies = nccl_copies.load(std::memory_order_relaxed);
  for (unsigned copy = 1; copy < copies; copy++)
    if (inside(nccl_code[copy], address)) return copy;
  return kCopies;
}

unsigned copy_of(void* function) {
  const unsigned known = copy_around(function);
  if (known != kCopies) return known;
  while (copying.exchange(1, std::memory_order_acquire)) sched_yield();
  unsigned copy = copy_around(function);
  for (unsigned i = 1; copy == kCopies && i < kCopies; i++) {
    if (nccl_code[i].start.load(std::memory_order_relaxed) != 0) continue;
    Dl_info info;
    if (dladdr(function, &info) && info.dli_fname)
      dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);  // never unmapped now
    real_functions[i][0].store(function, std::memory_order_relaxed);  // one that is always known: tells the library
    set_range(nccl_code[i], segment_of(function));
    nccl_copies.store(i + 1, std::memory_order_release);
    copy = i;
  }
  copying.store(0, std::memory_order_release);
  return copy;
}

unsigned copy_in_use() {
  for (unsigned copy = 0; copy < kCopies; copy++)
    for (const auto& known : real_functions[copy])
      if (known.load(std::memory_order_relaxed)) return copy;
  return 0;
}

void* find_real_host(unsigned row) {
  const abi::HostFunction& function = abi::kHostFunctions[row];
  const int saved = errno;
  know_own_code();
  void* found = usable(find_symbol(RTLD_NEXT, function.symbol));
  constexpr const char* kRuntimes[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
  constexpr const char* kDrivers[] = {"libcuda.so.1"};
  const auto look_in = [&](const char* name) {
    if (found) return;
    if (void* library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) found = usable(find_symbol(library, function.symbol));
  };
  if (function.library == abi::HostLibrary::runtime)
    for (const char* name : kRuntimes) look_in(name);
  else
    for (const char* name : kDrivers) look_in(name);
  if (found) real_host_functions[row].store(found, std::memory_order_release);
  errno = saved;
  return found;
}

void say_missing(abi::Fn fn) {
  static std::atomic<uint32_t> said[kMostFunctions];
  if (said[static_cast<unsigned>(fn)].exchange(1, std::memory_order_relaxed)) return;
  Text<200> text;
  text << "nccl" << abi::find_function(fn)->name
       << " was called, but no libnccl.so.2 in this process has it; the call fails with ncclInvalidUsage";
  report(text.text());
}

const char* nccl_path() {
  Dl_info info;
  for (const auto& known : real_functions[copy_in_use()])
    if (void* function = known.load(std::memory_order_relaxed))
      if (dladdr(function, &info) && info.dli_fname) return info.dli_fname;
  return "";
}

}  // namespace lockstep::shim
