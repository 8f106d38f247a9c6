// SPDX-License-Identifier: MIT
//
// Streams, events and host functions.

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "reference/cuda/engine.h"
#include "reference/cuda/event.h"
#include "reference/cuda/host_call.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

// Waits in its stream for what submit() was told to wait for; the queue keeps everything behind it back.
class Marker final : public Op {
 public:
  Step step() override { return Step::done; }
};

}  // namespace

cudaError_t lockstep_host_cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *stream = engine().create_stream(flags == cudaStreamNonBlocking ? StreamKind::non_blocking : StreamKind::blocking,
                                   priority);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return lockstep_host_cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t lockstep_host_cudaStreamCreate(cudaStream_t* stream) {
  return lockstep_host_cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t lockstep_host_cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return engine().destroy_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t lockstep_host_cudaStreamSynchronize(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  // The legacy stream is done when it and all it would wait for is done.
  if (stream->kind == StreamKind::legacy && !engine().quiet(stream))
    engine().wait(engine().submit(stream, std::make_unique<Marker>(), {}));
  else
    engine().wait({stream, stream->enqueued()});
  return lockstep_host_sticky_error();
}
cudaError_t lockstep_host_cudaStreamQuery(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  return engine().quiet(stream) || (stream->kind != StreamKind::legacy && !stream->pending()) ? cudaSuccess
                                                                                              : cudaErrorNotReady;
}

cudaError_t lockstep_host_cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  const auto event = find_event(event_handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  if (flags > cudaEventWaitExternal) return cudaErrorInvalidValue;
  const Point point = event->point();
  if (!point.reached() && point.stream != stream) engine().submit(stream, std::make_unique<Marker>(), {point});
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* user_data) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (fn == nullptr) return cudaErrorInvalidValue;
  engine().submit(stream, make_host_call(*stream, [fn, user_data] { fn(user_data); }), {});
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* user_data,
                                                unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (callback == nullptr || flags != 0) return cudaErrorInvalidValue;
  engine().submit(stream, make_host_call(*stream, [=] { callback(handle, cudaSuccess, user_data); }), {});
  return cudaSuccess;
}

// --- events
// --------------------------------------------------------------------------------------------------------------

cudaError_t lockstep_host_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  constexpr unsigned int known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (event == nullptr || (flags & ~known) != 0) return cudaErrorInvalidValue;
  if ((flags & cudaEventInterprocess) != 0) return cudaErrorNotSupported;
  *event = create_event((flags & cudaEventDisableTiming) == 0);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaEventCreate(cudaEvent_t* event) {
  return lockstep_host_cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t lockstep_host_cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return destroy_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t lockstep_host_cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(stream_handle, stream)) return e;
  const auto event = find_event(handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  if (flags > cudaEventRecordExternal) return cudaErrorInvalidValue;
  event->record(stream);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return lockstep_host_cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t lockstep_host_cudaEventQuery(cudaEvent_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto event = find_event(handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  return event->point().reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t lockstep_host_cudaEventSynchronize(cudaEvent_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto event = find_event(handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  engine().wait(event->point());
  return lockstep_host_sticky_error();
}

cudaError_t lockstep_host_cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (milliseconds == nullptr) return cudaErrorInvalidValue;
  const auto from = find_event(start);
  const auto to = find_event(end);
  if (!from || !to || !from->timing || !to->timing || !from->recorded() || !to->recorded())
    return cudaErrorInvalidResourceHandle;
  if (!from->point().reached() || !to->point().reached()) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(static_cast<double>(to->time_ns() - from->time_ns()) * 1e-6);
  return cudaSuccess;
}
