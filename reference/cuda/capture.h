// SPDX-License-Identifier: MIT
//
// Stream capture: while a stream is captured its work is not done but becomes nodes of a graph.
//
// A capture begins on one stream and spreads: a stream that waits for an event recorded in it belongs to it from then
// on, until the capture ends on the stream where it began, which must by then have waited for all others. Each stream
// in it has a seat: the nodes that its next node will wait for. What cannot be part of a graph, or could not be told
// apart from the captured work (asking how far a captured stream is, allocating while somebody captures), invalidates
// the capture: from then on its streams take nothing, and ending it gives an error. The rules and their error codes are
// CUDA's, because libraries probe for them.

#pragma once

#include <memory>
#include <vector>

#include "reference/cuda/graph.h"

namespace lockstep::host {

struct Capture;

struct Seat {
  std::shared_ptr<Capture> capture;
  std::vector<Node*> tail;
};

cudaError_t begin_capture(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode);
cudaError_t begin_capture_to(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Graph>& graph,
                             std::vector<Node*> after, cudaStreamCaptureMode mode);
cudaError_t end_capture(const std::shared_ptr<Stream>& stream, cudaGraph_t* graph);

// If the streams are captured, adds a node that stands in all of them and sets `captured`. Else the caller does the
// work now, unless there is an error: the streams do not belong together, their capture is invalid, or one is the
// legacy default stream and would wait for a captured one.
cudaError_t capture(const std::vector<std::shared_ptr<Stream>>& streams, const Task& task, bool& captured);
bool anybody_captures();
// The same for one stream, whose task is made only if somebody captures at all.
template <class MakeTask>
cudaError_t capture(const std::shared_ptr<Stream>& stream, const MakeTask& make_task, bool& captured) {
  captured = false;
  return anybody_captures() ? capture(std::vector{stream}, Task(make_task()), captured) : cudaSuccess;
}

// The calling thread is about to do what a capture in progress may prohibit (allocate, synchronise).
cudaError_t check_allowed();
// About to ask how far a stream is, or to wait for it: prohibited if it is captured, whatever the mode.
cudaError_t check_not_captured(const std::shared_ptr<Stream>& stream);
// About to do so for an event.
cudaError_t check_not_captured(const Event& event);
// About to do so for all streams of a device.
cudaError_t check_device_not_captured(int device);

// cudaEventRecord and cudaStreamWaitEvent as far as captured streams are concerned; both add nothing to the graph.
cudaError_t capture_record(const std::shared_ptr<Stream>& stream, Event& event, bool& captured);
cudaError_t capture_wait(const std::shared_ptr<Stream>& stream, const Event& event, bool& captured);

void forget_captured_stream(const std::shared_ptr<Stream>& stream);  // it is being destroyed

struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* tail = nullptr;  // valid until the stream's next call
  size_t tail_count = 0;
};
// Also says when the legacy default stream could not be used now.
cudaError_t capture_info(const std::shared_ptr<Stream>& stream, CaptureInfo& info);
cudaError_t update_capture_tail(const std::shared_ptr<Stream>& stream, std::vector<Node*> nodes, bool replace);

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode);  // of the calling thread

}  // namespace lockstep::host
