// SPDX-License-Identifier: MIT
//
// Clients that look NCCL up by themselves (ctypes, cffi, the stubs of JAX and TensorFlow, vLLM) bypass every preloaded
// function; what they all call is dlsym. So dlsym is stood in front of, too, with care:
//
// * It is hot: Python asks for a symbol with every extension and every ctypes function. A name that does not begin with
//   "nc" or "cu" costs two compared bytes and a jump.
// * The true dlsym looks at its return address: RTLD_NEXT and RTLD_DEFAULT mean "as seen from the caller". Whatever is
//   not ours to answer is therefore handed on by a jump with registers and stack as they came, so that the caller stays
//   the caller. That is what the assembly is for.
// * A name we hook, asked for in a library's handle, gives our hook, bound to the very function that was found there.
// * A name we hook, asked for in the global scope with nothing real behind our hook, is not there: a program that
//   probes for NCCL or CUDA must not find us instead.

#include "interpose/shim/libc.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "interpose/abi/host_functions.h"
#include "interpose/shim/config.h"
#include "interpose/shim/copies.h"
#include "interpose/shim/real.h"

extern "C" {
// The true dlsym, or the next library's that stands in front of it. Hidden: for the assembly below.
__attribute__((visibility("hidden"))) void* (*lockstep_true_dlsym)(void*, const char*);

struct LockstepFound {
  void* address;
  uint64_t hand_on;  // 1 = the question is not ours: jump to the true dlsym
};
__attribute__((visibility("hidden"))) LockstepFound lockstep_dlsym(void* handle, const char* name, const void* caller);
}

namespace lockstep::shim {
namespace {

using Dlsym = void* (*)(void*, const char*);

// Before glibc 2.34 it lived in libdl under its first version.
Dlsym true_dlsym() {
  Dlsym known = __atomic_load_n(&lockstep_true_dlsym, __ATOMIC_ACQUIRE);
  if (__builtin_expect(known != nullptr, 1)) return known;
  const int saved = errno;
#if defined(__aarch64__)
  constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#else
  constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#endif
  for (const char* version : kVersions) {
    known = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
    if (known) break;
  }
  __atomic_store_n(&lockstep_true_dlsym, known, __ATOMIC_RELEASE);
  errno = saved;
  return known;
}

// The assembly's test, for calls that come before the true dlsym is known.
bool may_be_ours(const char* name) { return (name[0] == 'n' && name[1] == 'c') || (name[0] == 'c' && name[1] == 'u'); }

bool inert() {
  static int known;  // 1 = inert, 2 = not
  if (known == 0) known = disabled() ? 1 : 2;
  return known == 1;
}

int host_row(const char* name) {
  for (unsigned row = 0; row < abi::kHostRows; row++)
    if (strcmp(name, abi::kHostFunctions[row].symbol) == 0) return static_cast<int>(row);
  return -1;
}

// Would the caller find it in its own scope, were we not there? The global scope, or what its library brought along.
bool there_for(const void* caller, const char* name) {
  const void* found = find_symbol(RTLD_NEXT, name);
  if (found && !inside(own_code, reinterpret_cast<uintptr_t>(found))) return true;
  Dl_info info;
  if (!caller || !dladdr(caller, &info) || !info.dli_fname) return false;
  void* library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (!library) return false;  // the program itself
  found = find_symbol(library, name);
  dlclose(library);
  return found && !inside(own_code, reinterpret_cast<uintptr_t>(found));
}

bool is_ours(const void* address) { return inside(own_code, reinterpret_cast<uintptr_t>(address)); }

}  // namespace

void* find_symbol(void* handle, const char* name) {
  const Dlsym known = true_dlsym();
  return known ? known(handle, name) : nullptr;
}

}  // namespace lockstep::shim

LockstepFound lockstep_dlsym(void* handle, const char* name, const void* caller) {
  using namespace lockstep::shim;
  const LockstepFound not_ours = {nullptr, 1};
  const Dlsym known = true_dlsym();
  if (!known) return {nullptr, 0};
  if (!name || handle == RTLD_NEXT || !may_be_ours(name)) return not_ours;
  const lockstep::abi::FunctionInfo* function =
      strncmp(name, "nccl", 4) == 0 ? lockstep::abi::find_function(name + 4) : nullptr;
  if (function && !function->hooked) function = nullptr;
  const int row = function ? -1 : host_row(name);
  if ((!function && row < 0) || inert()) return not_ours;
  know_own_code();
  if (is_ours(caller) || called_by_nccl(caller)) return not_ours;
  const int saved = errno;
  if (handle == RTLD_DEFAULT) {
    const bool there = there_for(caller, name);
    errno = saved;
    return there ? not_ours : LockstepFound{known(RTLD_NEXT, name), 0};  // not there: leaves the words for dlerror, too
  }
  void* found = known(handle, name);
  if (!found) return {nullptr, 0};
  if (is_ours(found)) {  // the program's own handle: the global scope
    const bool there = there_for(nullptr, name);
    errno = saved;
    return {there ? found : known(RTLD_NEXT, name), 0};
  }
  if (function) real_function(0, function->fn);  // so that the one the loader finds by name is copy 0
  void* hook = function ? hook_for(function->fn, found) : host_hook_for(static_cast<unsigned>(row), found);
  errno = saved;
  return {hook ? hook : found, 0};
}

#if defined(__x86_64__)
// rdi handle, rsi name. Everything else a caller may rely on stays as it is until the jump.
__asm__(
    ".text\n"
    ".globl dlsym\n"
    ".type dlsym, @function\n"
    ".p2align 4\n"
    "dlsym:\n"
    "  .cfi_startproc\n"
    "  endbr64\n"
    "  movq lockstep_true_dlsym(%rip), %rax\n"
    "  testq %rax, %rax\n"
    "  je 2f\n"
    "  testq %rsi, %rsi\n"
    "  je 1f\n"
    "  cmpb $'n', (%rsi)\n"
    "  je 3f\n"
    "  cmpb $'c', (%rsi)\n"
    "  jne 1f\n"
    "  cmpb $'u', 1(%rsi)\n"
    "  je 2f\n"
    "1:\n"
    "  jmp *%rax\n"
    "3:\n"
    "  cmpb $'c', 1(%rsi)\n"
    "  jne 1b\n"
    "2:\n"
    "  pushq %rdi\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  pushq %rsi\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  movq 16(%rsp), %rdx\n"
    "  subq $8, %rsp\n"
    "  .cfi_adjust_cfa_offset 8\n"
    "  call lockstep_dlsym\n"
    "  addq $8, %rsp\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  popq %rsi\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  popq %rdi\n"
    "  .cfi_adjust_cfa_offset -8\n"
    "  testq %rdx, %rdx\n"
    "  jne 4f\n"
    "  ret\n"
    "4:\n"
    "  movq lockstep_true_dlsym(%rip), %rax\n"
    "  jmp *%rax\n"
    "  .cfi_endproc\n"
    ".size dlsym, .-dlsym\n");
#else
// Compiled to a jump as well, as long as it is optimised.
extern "C" __attribute__((visibility("default"), optimize("O2"))) void* dlsym(void* handle, const char* name) {
  const LockstepFound found = lockstep_dlsym(handle, name, __builtin_return_address(0));
  return found.hand_on ? lockstep_true_dlsym(handle, name) : found.address;
}
#endif
