// SPDX-License-Identifier: MIT
//
// The runtime's capture functions. What they do is in capture.h.

#include <cstring>
#include <memory>
#include <vector>

#include "reference/cuda/capture.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"

using namespace lockstep::host;

namespace {

bool nodes_of(const cudaGraphNode_t* handles, size_t count, std::vector<Node*>& nodes) {
  if (handles == nullptr && count > 0) return false;
  for (size_t i = 0; i < count; ++i) {
    nodes.push_back(find_node(handles[i]));
    if (nodes.back() == nullptr) return false;
  }
  return true;
}

}  // namespace

cudaError_t lockstep_host_cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  return begin_capture(stream, mode);
}
cudaError_t lockstep_host_cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t graph_handle,
                                                        const cudaGraphNode_t* dependencies, const cudaGraphEdgeData*,
                                                        size_t count, cudaStreamCaptureMode mode) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  const auto graph = find_graph(graph_handle);
  std::vector<Node*> after;
  if (!graph || !nodes_of(dependencies, count, after)) return cudaErrorInvalidValue;
  for (const Node* node : after)
    if (node->graph != graph.get()) return cudaErrorInvalidValue;
  return begin_capture_to(stream, graph, std::move(after), mode);
}
cudaError_t lockstep_host_cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  return graph == nullptr ? cudaErrorInvalidValue : end_capture(stream, graph);
}

cudaError_t lockstep_host_cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (status == nullptr) return cudaErrorInvalidValue;
  CaptureInfo info;
  const cudaError_t result = capture_info(stream, info);
  *status = info.status;
  return result;
}
cudaError_t lockstep_host_cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                                   unsigned long long* id, cudaGraph_t* graph,
                                                   const cudaGraphNode_t** tail, const cudaGraphEdgeData** tail_data,
                                                   size_t* tail_count) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  if (status == nullptr) return cudaErrorInvalidValue;
  CaptureInfo info;
  const cudaError_t result = capture_info(stream, info);
  *status = info.status;
  if (result != cudaSuccess || info.status != cudaStreamCaptureStatusActive) return result;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = info.graph;
  if (tail != nullptr) *tail = info.tail;
  if (tail_data != nullptr) *tail_data = nullptr;  // all edges are of the default kind
  if (tail_count != nullptr) *tail_count = info.tail_count;
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* dependencies,
                                                              const cudaGraphEdgeData*, size_t count,
                                                              unsigned int flags) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  std::vector<Node*> nodes;
  if (flags > cudaStreamSetCaptureDependencies || !nodes_of(dependencies, count, nodes)) return cudaErrorInvalidValue;
  return update_capture_tail(stream, std::move(nodes), flags == cudaStreamSetCaptureDependencies);
}

cudaError_t lockstep_host_cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (mode == nullptr) return cudaErrorInvalidValue;
  int wanted = 0;  // looked at as a number, since it may be none of the enum's
  std::memcpy(&wanted, mode, sizeof wanted);
  if (wanted < cudaStreamCaptureModeGlobal || wanted > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  *mode = exchange_capture_mode(static_cast<cudaStreamCaptureMode>(wanted));
  return cudaSuccess;
}
