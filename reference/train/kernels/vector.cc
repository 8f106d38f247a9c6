// SPDX-License-Identifier: MIT

#include "reference/train/kernels/vector.h"

#include <atomic>

namespace train {

Isa best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) return Isa::plain;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return wide ? Isa::avx512 : Isa::avx2;
#else
  return Isa::plain;
#endif
}

namespace {
std::atomic<Isa>& in_use() {
  static std::atomic<Isa> chosen{best_isa()};
  return chosen;
}
}  // namespace

Isa isa() { return in_use().load(std::memory_order_relaxed); }
void set_isa(Isa isa) { in_use().store(isa < best_isa() ? isa : best_isa(), std::memory_order_relaxed); }

}  // namespace train
