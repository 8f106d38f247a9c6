// SPDX-License-Identifier: MIT
//
// See memory.h.

#include "interpose/shim/libc.h"

#include "interpose/shim/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

namespace lockstep::shim {

size_t copy_own_memory(uint64_t address, void* to, size_t size) {
  const int saved = errno;
  const struct iovec local = {to, size}, remote = {reinterpret_cast<void*>(address), size};
  const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  errno = saved;
  return n > 0 ? static_cast<size_t>(n) : 0;
}

void Memory::take_stack(uint64_t sp) {
  // A copy across the end of the stack stops at the last page that is there, but only whole requests are cut page by
  // page.
  set_stack(sp, 0);
  while (stack_size_ < kMostStack) {
    const uint64_t at = sp + stack_size_;
    const size_t to_page_end = kPage - at % kPage;
    const size_t want = to_page_end < kMostStack - stack_size_ ? to_page_end : kMostStack - stack_size_;
    const size_t got = copy_own_memory(at, stack_ + stack_size_, want);
    stack_size_ += got;
    if (got < want) break;
  }
}

void Memory::forget() {
  stack_size_ = 0;
  memset(page_at_, 0, sizeof page_at_);
}

const uint8_t* Memory::page(uint64_t address) {
  const uint64_t start = address / kPage * kPage;
  for (size_t i = 0; i < kPages; i++)
    if (page_at_[i] == start + 1) return pages_[i];
  const unsigned slot = next_page_++ % kPages;
  page_at_[slot] = 0;
  if (copy_own_memory(start, pages_[slot], kPage) != kPage) return nullptr;
  page_at_[slot] = start + 1;
  return pages_[slot];
}

bool Memory::read(uint64_t address, void* to, size_t size) {
  if (address >= stack_at_ && size <= stack_size_ && address - stack_at_ <= stack_size_ - size) {
    memcpy(to, stack_ + (address - stack_at_), size);
    return true;
  }
  for (size_t done = 0; done < size;) {
    const uint64_t at = address + done;
    const uint8_t* from = page(at);
    if (!from) return false;
    const size_t offset = at % kPage;
    const size_t n = kPage - offset < size - done ? kPage - offset : size - done;
    memcpy(static_cast<char*>(to) + done, from + offset, n);
    done += n;
  }
  return true;
}

}  // namespace lockstep::shim
