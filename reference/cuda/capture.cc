// SPDX-License-Identifier: MIT
//
// See capture.h. One lock guards all seats; `g_active` keeps it out of the way of programs that capture nothing.

#include "reference/cuda/capture.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_set>

#include "reference/cuda/engine.h"

namespace lockstep::host {

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  const Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  cudaGraph_t handle = nullptr;
  bool graph_is_the_users = false;  // it was there before, and stays when the capture fails
  bool invalid = false;
  bool over = false;
  std::vector<std::shared_ptr<Stream>> streams;
};

namespace {

std::atomic<int> g_active{0};
thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;

struct State {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> active;
  unsigned long long next_id = 1;
};
State& state() {
  static State* const the_one = new State;  // never destroyed; see engine.h
  return *the_one;
}

bool nobody_captures() { return !anybody_captures(); }

void sit_down(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Capture>& capture, std::vector<Node*> tail) {
  stream->seat = std::make_shared<Seat>(Seat{capture, std::move(tail)});
  capture->streams.push_back(stream);
}

void finish(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : capture->streams) stream->seat.reset();
  capture->streams.clear();
  capture->over = true;
  std::erase(state().active, capture);
  g_active.fetch_sub(1);
}

// The captures of blocking streams of a device: the legacy default stream would have to wait for them.
std::vector<std::shared_ptr<Capture>> in_the_way_of(const Stream& legacy) {
  std::vector<std::shared_ptr<Capture>> found;
  if (legacy.kind != StreamKind::legacy) return found;
  for (const auto& capture : state().active)
    for (const auto& stream : capture->streams)
      if (stream->kind == StreamKind::blocking && stream->device == legacy.device) {
        found.push_back(capture);
        break;
      }
  return found;
}
// Using it all the same invalidates them, and fails.
cudaError_t clear_the_way_of(const Stream& stream) {
  const auto blocked = in_the_way_of(stream);
  for (const auto& capture : blocked) capture->invalid = true;
  return blocked.empty() ? cudaSuccess : cudaErrorStreamCaptureImplicit;
}

// Every node that one of these waits for, and they themselves.
std::unordered_set<const Node*> ancestors(const std::vector<Node*>& of) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> left(of.begin(), of.end());
  while (!left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    if (!seen.insert(node).second) continue;
    left.insert(left.end(), node->after.begin(), node->after.end());
  }
  return seen;
}

bool all_joined(const Capture& capture, const Seat& origin) {
  const auto joined = ancestors(origin.tail);
  for (const auto& stream : capture.streams)
    for (const Node* node : stream->seat->tail)
      if (joined.count(node) == 0) return false;
  return true;
}

std::vector<Node*> united(std::vector<Node*> some, const std::vector<Node*>& more) {
  for (Node* node : more)
    if (std::find(some.begin(), some.end(), node) == some.end()) some.push_back(node);
  return some;
}

cudaError_t begin(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode, std::shared_ptr<Graph> graph,
                  std::vector<Node*> after, bool users) {
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  if (stream->kind == StreamKind::legacy) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard lock(state().mutex);
  if (stream->seat) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = state().next_id++;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->graph_is_the_users = users;
  capture->handle = register_graph(graph);
  capture->graph = std::move(graph);
  sit_down(stream, capture, std::move(after));
  state().active.push_back(std::move(capture));
  g_active.fetch_add(1);
  return cudaSuccess;
}

}  // namespace

bool anybody_captures() { return g_active.load(std::memory_order_acquire) != 0; }

cudaError_t begin_capture(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode) {
  return begin(stream, mode, std::make_shared<Graph>(), {}, false);
}
cudaError_t begin_capture_to(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Graph>& graph,
                             std::vector<Node*> after, cudaStreamCaptureMode mode) {
  return begin(stream, mode, graph, std::move(after), true);
}

cudaError_t end_capture(const std::shared_ptr<Stream>& stream, cudaGraph_t* graph) {
  *graph = nullptr;
  std::shared_ptr<Capture> capture;
  cudaError_t result = cudaSuccess;
  {
    const std::lock_guard lock(state().mutex);
    if (!stream->seat) return cudaErrorIllegalState;
    capture = stream->seat->capture;
    if (capture->origin != stream.get()) {
      capture->invalid = true;
      return cudaErrorStreamCaptureUnmatched;
    }
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    if (capture->invalid)
      result = cudaErrorStreamCaptureInvalidated;
    else if (!all_joined(*capture, *stream->seat))
      result = cudaErrorStreamCaptureUnjoined;
    finish(capture);
  }
  if (result == cudaSuccess)
    *graph = capture->handle;
  else if (!capture->graph_is_the_users)
    unregister_graph(capture->handle);
  capture->graph.reset();  // events may keep the capture itself for long
  return result;
}

cudaError_t capture(const std::vector<std::shared_ptr<Stream>>& streams, const Task& task, bool& captured) {
  captured = false;
  if (nobody_captures()) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  std::vector<std::shared_ptr<Capture>> involved;
  bool outside = false;
  for (const auto& stream : streams) {
    if (const cudaError_t e = clear_the_way_of(*stream)) return e;
    if (!stream->seat)
      outside = true;
    else if (std::find(involved.begin(), involved.end(), stream->seat->capture) == involved.end())
      involved.push_back(stream->seat->capture);
  }
  if (involved.empty()) return cudaSuccess;
  if (involved.front()->invalid) return cudaErrorStreamCaptureInvalidated;
  if (involved.size() > 1 || outside) {
    for (const auto& one : involved) one->invalid = true;
    return outside ? cudaErrorStreamCaptureIsolation : cudaErrorStreamCaptureMerge;
  }
  std::vector<Node*> after;
  for (const auto& stream : streams) after = united(std::move(after), stream->seat->tail);
  Node* const node = involved.front()->graph->add(task, std::move(after));
  for (const auto& stream : streams) stream->seat->tail = {node};
  captured = true;
  return cudaSuccess;
}

cudaError_t check_allowed() {
  if (nobody_captures() || t_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : state().active) {
    const bool prohibits = capture->thread == std::this_thread::get_id()
                               ? capture->mode != cudaStreamCaptureModeRelaxed
                               : capture->mode == cudaStreamCaptureModeGlobal && t_mode == cudaStreamCaptureModeGlobal;
    if (!prohibits) continue;
    capture->invalid = true;
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

cudaError_t check_not_captured(const std::shared_ptr<Stream>& stream) {
  if (nobody_captures()) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  if (const cudaError_t e = clear_the_way_of(*stream)) return e;
  if (!stream->seat) return cudaSuccess;
  if (stream->seat->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  stream->seat->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t check_not_captured(const Event& event) {
  const auto seat = event.captured();
  if (!seat) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  seat->capture->invalid = true;
  return cudaErrorCapturedEvent;
}

cudaError_t check_device_not_captured(int device) {
  if (nobody_captures()) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : state().active)
    for (const auto& stream : capture->streams)
      if (stream->device == device) {
        capture->invalid = true;
        result = cudaErrorStreamCaptureUnsupported;
      }
  return result;
}

cudaError_t capture_record(const std::shared_ptr<Stream>& stream, Event& event, bool& captured) {
  captured = false;
  if (nobody_captures()) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  if (const cudaError_t e = clear_the_way_of(*stream)) return e;
  if (!stream->seat) return cudaSuccess;
  if (stream->seat->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  event.record_captured(std::make_shared<Seat>(*stream->seat));
  captured = true;
  return cudaSuccess;
}

cudaError_t capture_wait(const std::shared_ptr<Stream>& stream, const Event& event, bool& captured) {
  captured = false;
  const auto from = event.captured();
  if (nobody_captures()) return from ? cudaErrorCapturedEvent : cudaSuccess;
  const std::lock_guard lock(state().mutex);
  if (const cudaError_t e = clear_the_way_of(*stream)) return e;
  const auto seat = stream->seat;
  if (!from && !seat) return cudaSuccess;
  if (from && from->capture->over) {  // of a capture that has ended
    if (seat) seat->capture->invalid = true;
    return cudaErrorCapturedEvent;
  }
  if (seat && seat->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!from) {
    if (!event.recorded()) {  // never recorded, so nothing to wait for
      captured = true;
      return cudaSuccess;
    }
    seat->capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (from->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->kind == StreamKind::legacy) {
    from->capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (seat && seat->capture != from->capture) {
    seat->capture->invalid = from->capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (!seat)
    sit_down(stream, from->capture, from->tail);
  else
    seat->tail = united(seat->tail, from->tail);
  captured = true;
  return cudaSuccess;
}

void forget_captured_stream(const std::shared_ptr<Stream>& stream) {
  if (nobody_captures()) return;
  std::shared_ptr<Capture> ended;
  {
    const std::lock_guard lock(state().mutex);
    if (!stream->seat) return;
    const auto capture = stream->seat->capture;
    capture->invalid = true;
    if (capture->origin == stream.get()) {  // nobody can end it any more
      finish(capture);
      ended = capture;
    } else {
      std::erase(capture->streams, stream);
      stream->seat.reset();
    }
  }
  if (!ended) return;
  if (!ended->graph_is_the_users) unregister_graph(ended->handle);
  ended->graph.reset();
}

cudaError_t capture_info(const std::shared_ptr<Stream>& stream, CaptureInfo& info) {
  info = {};
  if (nobody_captures()) return cudaSuccess;
  const std::lock_guard lock(state().mutex);
  if (!in_the_way_of(*stream).empty()) return cudaErrorStreamCaptureImplicit;
  if (!stream->seat) return cudaSuccess;
  const Capture& capture = *stream->seat->capture;
  info.id = capture.id;
  info.status = capture.invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  if (capture.invalid) return cudaSuccess;
  info.graph = capture.handle;
  info.tail = reinterpret_cast<const cudaGraphNode_t*>(stream->seat->tail.data());
  info.tail_count = stream->seat->tail.size();
  return cudaSuccess;
}

cudaError_t update_capture_tail(const std::shared_ptr<Stream>& stream, std::vector<Node*> nodes, bool replace) {
  const std::lock_guard lock(state().mutex);
  if (!stream->seat) return cudaErrorIllegalState;
  if (stream->seat->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  for (const Node* node : nodes)
    if (node->graph != stream->seat->capture->graph.get()) return cudaErrorInvalidValue;
  stream->seat->tail = replace ? std::move(nodes) : united(stream->seat->tail, nodes);
  return cudaSuccess;
}

cudaStreamCaptureMode exchange_capture_mode(cudaStreamCaptureMode mode) { return std::exchange(t_mode, mode); }

}  // namespace lockstep::host
