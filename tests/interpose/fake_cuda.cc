// SPDX-License-Identifier: MIT
//
// A libcuda.so.1 of a few functions, whose streams do nothing until they are told: events are numbered as they are recorded
// and are done when fake_cuda_release() has let that number pass. So a test decides what has started and what is complete.
// What the shim asks for by itself sets errno, as a real driver may: the job must not see that.

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalid = 1, kNotReady = 600, kCaptureForbidden = 900;

struct Event {
  std::atomic<uint64_t> ticket{0};
};

std::atomic<uint64_t> tickets, released;
std::atomic<int> capturing, blocked, events_under_capture, queries;

bool is_done(const Event& event) { return event.ticket.load() <= released.load(); }

}  // namespace

// Everything recorded so far and up to `more` further records is done.
EXPORT void fake_cuda_release(uint64_t more) { released.store(more == UINT64_MAX ? more : released.load() + more); }
EXPORT uint64_t fake_cuda_tickets() { return tickets.load(); }
EXPORT void fake_cuda_capture(int on) { capturing.store(on); }
EXPORT void fake_cuda_block_queries(int on) { blocked.store(on); }
EXPORT int fake_cuda_events_under_capture() { return events_under_capture.load(); }
EXPORT int fake_cuda_queries() { return queries.load(); }

EXPORT int cuStreamIsCapturing(void*, int* status) {
  errno = EIO;
  *status = capturing.load();
  return kSuccess;
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  errno = EIO;
  thread_local int mine = 0;
  const int old = mine;
  mine = *mode;
  *mode = old;
  return kSuccess;
}
EXPORT int cuCtxGetCurrent(void** context) {
  errno = EIO;
  *context = reinterpret_cast<void*>(0x1000);
  return kSuccess;
}
EXPORT int cuCtxGetDevice(int* device) {
  errno = EIO;
  *device = 0;
  return kSuccess;
}
EXPORT int cuCtxSetCurrent(void* context) { return context ? kSuccess : kInvalid; }
EXPORT int cuCtxPushCurrent_v2(void*) { return kSuccess; }
EXPORT int cuEventCreate(void** event, unsigned) {
  errno = EIO;
  *event = new Event;
  return kSuccess;
}
EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}
EXPORT int cuEventRecord(void* event, void*) {
  if (capturing.load()) {
    events_under_capture++;
    return kCaptureForbidden;
  }
  static_cast<Event*>(event)->ticket.store(++tickets);
  return kSuccess;
}
EXPORT int cuEventQuery(void* event) {
  errno = EIO;
  queries++;
  while (blocked.load()) usleep(1000);
  return is_done(*static_cast<Event*>(event)) ? kSuccess : kNotReady;
}
EXPORT int cuEventSynchronize(void* event) {
  while (!is_done(*static_cast<Event*>(event))) usleep(1000);
  return kSuccess;
}
EXPORT int cuStreamSynchronize(void*) {
  const uint64_t until = tickets.load();
  while (released.load() < until) usleep(1000);
  return kSuccess;
}
EXPORT int cuCtxSynchronize() { return cuStreamSynchronize(nullptr); }
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }
// This stream is always at its end.
EXPORT int cuLaunchHostFunc(void*, void (*function)(void*), void* data) {
  errno = EIO;
  function(data);
  return kSuccess;
}
EXPORT int cuGraphLaunch(void*, void*) { return kSuccess; }
EXPORT int cuMemcpy(uint64_t to, uint64_t from, size_t size) {
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
  return kSuccess;
}
// Attribute 2: the kind of memory. The page at 0x1000 is the "device's" and must not be read.
EXPORT int cuPointerGetAttribute(void* data, int attribute, uint64_t pointer) {
  errno = EIO;
  if (attribute != 2) return kInvalid;
  *static_cast<unsigned*>(data) = pointer >> 12 == 1 ? 2 : 1;
  return kSuccess;
}
