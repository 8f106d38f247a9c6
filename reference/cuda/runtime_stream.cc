// SPDX-License-Identifier: MIT
//
// Streams, events and host functions.

#include <algorithm>
#include <memory>
#include <utility>

#include "reference/cuda/capture.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/event.h"
#include "reference/cuda/host_call.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

constexpr int kGreatestPriority = -5;

}  // namespace

cudaError_t lockstep_host_cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  *stream = engine().create_stream(flags == cudaStreamNonBlocking ? StreamKind::non_blocking : StreamKind::blocking,
                                   std::clamp(priority, kGreatestPriority, 0));
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

cudaError_t lockstep_host_cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (priority == nullptr) return cudaErrorInvalidValue;
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamGetFlags(cudaStream_t handle, unsigned int* flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (flags == nullptr) return cudaErrorInvalidValue;
  *flags = stream->kind == StreamKind::non_blocking ? cudaStreamNonBlocking : cudaStreamDefault;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (id == nullptr) return cudaErrorInvalidValue;
  *id = stream->id;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamGetDevice(cudaStream_t handle, int* device) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (device == nullptr) return cudaErrorInvalidValue;
  *device = stream->device;
  return cudaSuccess;
}

// What both asking how far a stream is and waiting for it must not do in a capture.
static cudaError_t resolve_to_ask(cudaStream_t handle, std::shared_ptr<Stream>& stream) {
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (const cudaError_t e = check_not_captured(stream)) return e;
  return check_allowed();
}

cudaError_t lockstep_host_cudaStreamSynchronize(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve_to_ask(handle, stream)) return e;
  // The legacy stream is done when it and all it would wait for is done.
  if (stream->kind == StreamKind::legacy && !engine().quiet(stream))
    engine().wait(engine().submit(stream, make_marker(), {}));
  else
    engine().wait({stream, stream->enqueued()});
  return lockstep_host_sticky_error();
}
cudaError_t lockstep_host_cudaStreamQuery(cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve_to_ask(handle, stream)) return e;
  return engine().quiet(stream) || (stream->kind != StreamKind::legacy && !stream->pending()) ? cudaSuccess
                                                                                              : cudaErrorNotReady;
}

cudaError_t lockstep_host_cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  const auto event = find_event(event_handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  if (flags > cudaEventWaitExternal) return cudaErrorInvalidValue;
  bool captured = false;
  const cudaError_t e = flags == cudaEventWaitExternal
                            ? capture(
                                  stream,
                                  [&] {
                                    return Task{cudaGraphNodeTypeWaitEvent, EventUse{event_handle, event}};
                                  },
                                  captured)
                            : capture_wait(stream, *event, captured);
  if (e != cudaSuccess || captured) return e;
  const Point point = event->point();
  if (!point.reached() && point.stream != stream) engine().submit(stream, make_marker(), {point});
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* user_data) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (fn == nullptr) return cudaErrorInvalidValue;
  bool captured = false;
  const auto node = [&] { return Task{cudaGraphNodeTypeHost, cudaHostNodeParams{fn, user_data}}; };
  if (const cudaError_t e = capture(stream, node, captured); e != cudaSuccess || captured) return e;
  engine().submit(stream, make_host_call(*stream, [fn, user_data] { fn(user_data); }), {});
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* user_data,
                                                unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (callback == nullptr || flags != 0) return cudaErrorInvalidValue;
  if (const cudaError_t e = check_not_captured(stream)) return e;  // no graph can hold one
  engine().submit(stream, make_host_call(*stream, [=] { callback(handle, cudaSuccess, user_data); }), {});
  return cudaSuccess;
}

// --- events
// --------------------------------------------------------------------------------------------------------------

cudaError_t lockstep_host_cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  constexpr unsigned int known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (event == nullptr || (flags & ~known) != 0) return cudaErrorInvalidValue;
  if ((flags & cudaEventInterprocess) != 0) {
    if ((flags & cudaEventDisableTiming) == 0) return cudaErrorInvalidValue;
    return lockstep_host_refuse_function("cudaEventCreateWithFlags with cudaEventInterprocess");
  }
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
  bool captured = false;
  const cudaError_t e = flags == cudaEventRecordExternal
                            ? capture(
                                  stream,
                                  [&] {
                                    return Task{cudaGraphNodeTypeEventRecord, EventUse{handle, event}};
                                  },
                                  captured)
                            : capture_record(stream, *event, captured);
  if (e != cudaSuccess || captured) return e;
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
  if (const cudaError_t e = check_not_captured(*event)) return e;
  if (const cudaError_t e = check_allowed()) return e;
  return event->point().reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t lockstep_host_cudaEventSynchronize(cudaEvent_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto event = find_event(handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t e = check_not_captured(*event)) return e;
  if (const cudaError_t e = check_allowed()) return e;
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
