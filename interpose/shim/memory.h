// SPDX-License-Identifier: MIT
//
// Reading memory of this very process that may vanish or change under us: another thread's stack, the tables of a
// library that may be unloaded. The kernel copies (process_vm_readv), so a bad address is a refusal and never a fault.
//
// A thread's stack is copied whole, once, and unwound from the copy; everything else comes through a few cached pages.

#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::shim {

class Memory {
 public:
  // Copies up to kMostStack bytes from sp upwards.
  void take_stack(uint64_t sp);
  bool read(uint64_t address, void* to, size_t size);
  template <class T>
  bool get(uint64_t address, T& to) {
    return read(address, &to, sizeof to);
  }
  // For the handler of a snapshot signal, which copies its own thread's stack into ours.
  uint8_t* stack_space() { return stack_; }
  void set_stack(uint64_t sp, size_t size) { stack_at_ = sp, stack_size_ = size; }
  uint64_t stack_end() const { return stack_at_ + stack_size_; }
  void forget();

  static constexpr size_t kMostStack = 128 << 10;

 private:
  static constexpr size_t kPage = 4096, kPages = 16;
  const uint8_t* page(uint64_t address);
  uint8_t stack_[kMostStack];
  uint64_t stack_at_;
  size_t stack_size_;
  uint8_t pages_[kPages][kPage];
  uint64_t page_at_[kPages];  // address + 1; 0 = empty
  unsigned next_page_;
};

size_t copy_own_memory(uint64_t address, void* to, size_t size);  // bytes copied; async-signal-safe

}  // namespace lockstep::shim
