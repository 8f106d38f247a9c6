// SPDX-License-Identifier: MIT
//
// The runtime's functions about graphs and their nodes. What a graph is, is in graph.h.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reference/cuda/capture.h"
#include "reference/cuda/resolve.h"
#include "reference/cuda/runtime.h"
#include "reference/cuda/user_object.h"

using namespace lockstep::host;

namespace {

bool nodes_of(const Graph& graph, const cudaGraphNode_t* handles, size_t count, std::vector<Node*>& nodes) {
  if (handles == nullptr && count > 0) return false;
  for (size_t i = 0; i < count; ++i) {
    Node* const node = find_node(handles[i]);
    if (node == nullptr || node->graph != &graph) return false;
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) return false;
    nodes.push_back(node);
  }
  return true;
}

cudaError_t add(cudaGraphNode_t* out, cudaGraph_t handle, const cudaGraphNode_t* dependencies, size_t count,
                Task task) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  std::vector<Node*> after;
  if (out == nullptr || !graph || !nodes_of(*graph, dependencies, count, after)) return cudaErrorInvalidValue;
  *out = handle_of(graph->add(std::move(task), std::move(after)));
  return cudaSuccess;
}

// CUDA's way to give out a list: the length alone, or as many as there is room for, the rest being null.
cudaError_t give(const std::vector<const Node*>& nodes, cudaGraphNode_t* out, size_t* count) {
  if (count == nullptr) return cudaErrorInvalidValue;
  if (out == nullptr) {
    *count = nodes.size();
    return cudaSuccess;
  }
  for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? handle_of(nodes[i]) : nullptr;
  *count = std::min(*count, nodes.size());
  return cudaSuccess;
}

// --- tasks from parameters ---

cudaError_t copy_task(const cudaMemcpy3DParms* params, Task& task) {
  if (params == nullptr) return cudaErrorInvalidValue;
  Copy copy;
  if (const cudaError_t e = copy_of(*params, copy)) return e;
  task = {cudaGraphNodeTypeMemcpy, *params};
  return cudaSuccess;
}
cudaError_t fill_task(const cudaMemsetParams* params, Task& task) {
  if (params == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t e = check(*params)) return e;
  task = {cudaGraphNodeTypeMemset, *params};
  return cudaSuccess;
}
cudaError_t host_task(const cudaHostNodeParams* params, Task& task) {
  if (params == nullptr || params->fn == nullptr) return cudaErrorInvalidValue;
  task = {cudaGraphNodeTypeHost, *params};
  return cudaSuccess;
}
cudaError_t event_task(cudaGraphNodeType type, cudaEvent_t handle, Task& task) {
  auto event = find_event(handle);
  if (!event) return cudaErrorInvalidResourceHandle;
  task = {type, EventUse{handle, std::move(event)}};
  return cudaSuccess;
}

// --- one node's task, in a graph or in an instantiated one ---

cudaError_t set(cudaGraphNode_t handle, cudaError_t made, Task task) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (made != cudaSuccess) return made;
  Node* const node = find_node(handle);
  if (node == nullptr || node->task.type != task.type) return cudaErrorInvalidValue;
  node->task = std::move(task);
  return cudaSuccess;
}
cudaError_t set(cudaGraphExec_t exec_handle, cudaGraphNode_t handle, cudaError_t made, Task task) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (made != cudaSuccess) return made;
  const auto exec = find_exec(exec_handle);
  if (!exec) return cudaErrorInvalidValue;
  return exec->set_task(reinterpret_cast<const Node*>(handle), std::move(task)) ? cudaSuccess : cudaErrorInvalidValue;
}
template <class T>
cudaError_t get(cudaGraphNode_t handle, T* out) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const Node* const node = find_node(handle);
  const T* const what = node == nullptr ? nullptr : std::get_if<T>(&node->task.what);
  if (what == nullptr || out == nullptr) return cudaErrorInvalidValue;
  *out = *what;
  return cudaSuccess;
}
cudaError_t get_event(cudaGraphNode_t node, cudaGraphNodeType type, cudaEvent_t* event) {
  EventUse use;
  if (const cudaError_t e = get(node, &use)) return e;
  if (event == nullptr || find_node(node)->task.type != type) return cudaErrorInvalidValue;
  *event = use.handle;
  return cudaSuccess;
}

cudaMemcpy3DParms flat(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  return params_of(flat_copy(dst, src, bytes), kind);
}

}  // namespace

// --- graphs ---

cudaError_t lockstep_host_cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (graph == nullptr || flags != 0) return cudaErrorInvalidValue;
  *graph = register_graph(std::make_shared<Graph>());
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphDestroy(cudaGraph_t graph) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return unregister_graph(graph) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaGraphClone(cudaGraph_t* out, cudaGraph_t original) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(original);
  if (out == nullptr || !graph) return cudaErrorInvalidValue;
  std::unordered_map<const Node*, Node*> copies;
  const auto copy = clone(*graph, &copies);
  for (const auto& [node, twin] : copies) twin->original = node;
  *out = register_graph(copy);
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                const cudaGraphNode_t* dependencies, size_t count) {
  return add(node, graph, dependencies, count, {});
}
cudaError_t lockstep_host_cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies, size_t count,
                                                 const cudaMemcpy3DParms* params) {
  Task task;
  if (const cudaError_t e = copy_task(params, task)) return e;
  return add(node, graph, dependencies, count, std::move(task));
}
cudaError_t lockstep_host_cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* dependencies, size_t dependency_count,
                                                   void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = flat(dst, src, count, kind);
  return lockstep_host_cudaGraphAddMemcpyNode(node, graph, dependencies, dependency_count, &params);
}
cudaError_t lockstep_host_cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies, size_t count,
                                                 const cudaMemsetParams* params) {
  Task task;
  if (const cudaError_t e = fill_task(params, task)) return e;
  return add(node, graph, dependencies, count, std::move(task));
}
cudaError_t lockstep_host_cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* dependencies, size_t count,
                                               const cudaHostNodeParams* params) {
  Task task;
  if (const cudaError_t e = host_task(params, task)) return e;
  return add(node, graph, dependencies, count, std::move(task));
}
cudaError_t lockstep_host_cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* dependencies, size_t count,
                                                      cudaEvent_t event) {
  Task task;
  if (const cudaError_t e = event_task(cudaGraphNodeTypeEventRecord, event, task)) return e;
  return add(node, graph, dependencies, count, std::move(task));
}
cudaError_t lockstep_host_cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* dependencies, size_t count,
                                                    cudaEvent_t event) {
  Task task;
  if (const cudaError_t e = event_task(cudaGraphNodeTypeWaitEvent, event, task)) return e;
  return add(node, graph, dependencies, count, std::move(task));
}
// The child is copied: what happens to the original later does not matter.
cudaError_t lockstep_host_cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                     const cudaGraphNode_t* dependencies, size_t count,
                                                     cudaGraph_t child_handle) {
  const auto child = find_graph(child_handle);
  if (!child || child_handle == graph) return cudaErrorInvalidValue;
  return add(node, graph, dependencies, count, {cudaGraphNodeTypeGraph, clone(*child)});
}

cudaError_t lockstep_host_cudaGraphDestroyNode(cudaGraphNode_t handle) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  Node* const node = find_node(handle);
  if (node == nullptr) return cudaErrorInvalidValue;
  node->graph->remove(node);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphAddDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                                   const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph || (count > 0 && (from == nullptr || to == nullptr))) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    Node* const before = find_node(from[i]);
    Node* const after = find_node(to[i]);
    if (before == nullptr || after == nullptr || before == after || before->graph != graph.get() ||
        after->graph != graph.get() ||
        std::find(after->after.begin(), after->after.end(), before) != after->after.end())
      return cudaErrorInvalidValue;
    after->after.push_back(before);
  }
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphRemoveDependencies(cudaGraph_t handle, const cudaGraphNode_t* from,
                                                      const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                                      size_t count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (!find_graph(handle) || (count > 0 && (from == nullptr || to == nullptr))) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) {
    Node* const before = find_node(from[i]);
    Node* const after = find_node(to[i]);
    if (before == nullptr || after == nullptr || std::erase(after->after, before) == 0) return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

// --- questions ---

cudaError_t lockstep_host_cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph) return cudaErrorInvalidValue;
  std::vector<const Node*> all;
  for (const auto& node : graph->nodes) all.push_back(node.get());
  return give(all, nodes, count);
}
cudaError_t lockstep_host_cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph) return cudaErrorInvalidValue;
  std::vector<const Node*> roots;
  for (const auto& node : graph->nodes)
    if (node->after.empty()) roots.push_back(node.get());
  return give(roots, nodes, count);
}
cudaError_t lockstep_host_cudaGraphGetEdges(cudaGraph_t handle, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                            cudaGraphEdgeData* data, size_t* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph || count == nullptr || (from == nullptr) != (to == nullptr)) return cudaErrorInvalidValue;
  std::vector<const Node*> sources;
  std::vector<const Node*> targets;
  for (const auto& node : graph->nodes)
    for (const Node* before : node->after) {
      sources.push_back(before);
      targets.push_back(node.get());
    }
  if (data != nullptr) std::fill_n(data, std::min(*count, sources.size()), cudaGraphEdgeData{});
  size_t room = *count;
  if (const cudaError_t e = give(sources, from, &room)) return e;
  return give(targets, to, count);
}
cudaError_t lockstep_host_cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* dependencies,
                                                       cudaGraphEdgeData* data, size_t* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const Node* const node = find_node(handle);
  if (node == nullptr || count == nullptr) return cudaErrorInvalidValue;
  if (data != nullptr) std::fill_n(data, std::min(*count, node->after.size()), cudaGraphEdgeData{});
  return give({node->after.begin(), node->after.end()}, dependencies, count);
}
cudaError_t lockstep_host_cudaGraphNodeGetDependentNodes(cudaGraphNode_t handle, cudaGraphNode_t* dependents,
                                                         cudaGraphEdgeData* data, size_t* count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const Node* const node = find_node(handle);
  if (node == nullptr || count == nullptr) return cudaErrorInvalidValue;
  std::vector<const Node*> found;
  for (const auto& other : node->graph->nodes)
    if (std::find(other->after.begin(), other->after.end(), node) != other->after.end()) found.push_back(other.get());
  if (data != nullptr) std::fill_n(data, std::min(*count, found.size()), cudaGraphEdgeData{});
  return give(found, dependents, count);
}
cudaError_t lockstep_host_cudaGraphNodeGetType(cudaGraphNode_t handle, cudaGraphNodeType* type) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const Node* const node = find_node(handle);
  if (node == nullptr || type == nullptr) return cudaErrorInvalidValue;
  *type = node->task.type;
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original,
                                                   cudaGraph_t cloned) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(cloned);
  if (node == nullptr || !graph) return cudaErrorInvalidValue;
  for (const auto& twin : graph->nodes)
    if (twin->original == reinterpret_cast<const Node*>(original)) {
      *node = handle_of(twin.get());
      return cudaSuccess;
    }
  return cudaErrorInvalidValue;
}

cudaError_t lockstep_host_cudaGraphDebugDotPrint(cudaGraph_t handle, const char* path, unsigned int) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph || path == nullptr) return cudaErrorInvalidValue;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "w"), std::fclose);
  if (!file) return cudaErrorOperatingSystem;
  constexpr const char* kNames[] = {"nccl", "memcpy", "memset", "host",        "graph", "empty",
                                    "wait", "record", "signal", "signal wait", "alloc", "free"};
  std::fputs("digraph graph_of_streams {\n", file.get());
  for (const auto& node : graph->nodes) {
    std::fprintf(file.get(), "  \"%p\" [label=\"%s\"];\n", static_cast<void*>(node.get()), kNames[node->task.type]);
    for (const Node* before : node->after)
      std::fprintf(file.get(), "  \"%p\" -> \"%p\";\n", static_cast<const void*>(before),
                   static_cast<void*>(node.get()));
  }
  std::fputs("}\n", file.get());
  return cudaSuccess;
}

// --- parameters of nodes ---

cudaError_t lockstep_host_cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* params) {
  return get(node, params);
}
cudaError_t lockstep_host_cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* params) {
  Task task;
  const cudaError_t made = copy_task(params, task);
  return set(node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* dst, const void* src, size_t bytes,
                                                         cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = flat(dst, src, bytes, kind);
  return lockstep_host_cudaGraphMemcpyNodeSetParams(node, &params);
}
cudaError_t lockstep_host_cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* params) {
  return get(node, params);
}
cudaError_t lockstep_host_cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* params) {
  Task task;
  const cudaError_t made = fill_task(params, task);
  return set(node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* params) {
  return get(node, params);
}
cudaError_t lockstep_host_cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* params) {
  Task task;
  const cudaError_t made = host_task(params, task);
  return set(node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  std::shared_ptr<Graph> child;
  if (const cudaError_t e = get(node, &child)) return e;
  if (graph == nullptr) return cudaErrorInvalidValue;
  *graph = lend_graph(child);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return get_event(node, cudaGraphNodeTypeEventRecord, event);
}
cudaError_t lockstep_host_cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  Task task;
  const cudaError_t made = event_task(cudaGraphNodeTypeEventRecord, event, task);
  return set(node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {
  return get_event(node, cudaGraphNodeTypeWaitEvent, event);
}
cudaError_t lockstep_host_cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  Task task;
  const cudaError_t made = event_task(cudaGraphNodeTypeWaitEvent, event, task);
  return set(node, made, std::move(task));
}

// --- instantiated graphs ---

cudaError_t lockstep_host_cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t handle,
                                                        unsigned long long flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  constexpr unsigned long long known = cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
                                       cudaGraphInstantiateFlagUseNodePriority;
  if (exec == nullptr || !graph || (flags & ~known) != 0) return cudaErrorInvalidValue;
  const auto made = Exec::make(*graph);
  if (!made) return cudaErrorInvalidValue;
  made->flags = flags;
  *exec = register_exec(made);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return lockstep_host_cudaGraphInstantiateWithFlags(exec, graph, flags);
}
cudaError_t lockstep_host_cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                         cudaGraphInstantiateParams* params) {
  if (params == nullptr) return cudaErrorInvalidValue;
  const cudaError_t result = lockstep_host_cudaGraphInstantiateWithFlags(exec, graph, params->flags);
  params->errNode_out = nullptr;
  params->result_out = result == cudaSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateInvalidStructure;
  return result;
}
cudaError_t lockstep_host_cudaGraphExecGetFlags(cudaGraphExec_t handle, unsigned long long* flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto exec = find_exec(handle);
  if (!exec || flags == nullptr) return cudaErrorInvalidValue;
  *flags = exec->flags;
  return cudaSuccess;
}
// Launches in flight go on.
cudaError_t lockstep_host_cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return unregister_exec(exec) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  return find_exec(exec) ? cudaSuccess : cudaErrorInvalidValue;
}

// Into a captured stream, it becomes a node of the graph that is being made.
cudaError_t lockstep_host_cudaGraphLaunch(cudaGraphExec_t exec_handle, cudaStream_t handle) {
  std::shared_ptr<Stream> stream;
  if (const cudaError_t e = resolve(handle, stream)) return e;
  const auto exec = find_exec(exec_handle);
  if (!exec) return cudaErrorInvalidValue;
  bool captured = false;
  const auto node = [&] {
    return Task{cudaGraphNodeTypeGraph, Recipe([exec](const std::shared_ptr<Stream>& on, std::vector<Point> after) {
                  return exec->launch(on, std::move(after));
                })};
  };
  if (const cudaError_t e = capture(stream, node, captured); e != cudaSuccess || captured) return e;
  exec->launch(stream, {});
  return cudaSuccess;
}

cudaError_t lockstep_host_cudaGraphExecUpdate(cudaGraphExec_t exec_handle, cudaGraph_t handle,
                                              cudaGraphExecUpdateResultInfo* info) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto exec = find_exec(exec_handle);
  const auto graph = find_graph(handle);
  if (!exec || !graph) return cudaErrorInvalidValue;
  const cudaGraphExecUpdateResult result = exec->update(*graph);
  if (info != nullptr) *info = {result, nullptr, nullptr};
  return result == cudaGraphExecUpdateSuccess ? cudaSuccess : cudaErrorGraphExecUpdateFailure;
}
cudaError_t lockstep_host_cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                           const cudaMemcpy3DParms* params) {
  Task task;
  const cudaError_t made = copy_task(params, task);
  return set(exec, node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* dst,
                                                             const void* src, size_t bytes, cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = flat(dst, src, bytes, kind);
  return lockstep_host_cudaGraphExecMemcpyNodeSetParams(exec, node, &params);
}
cudaError_t lockstep_host_cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                           const cudaMemsetParams* params) {
  Task task;
  const cudaError_t made = fill_task(params, task);
  return set(exec, node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphExecHostNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                         const cudaHostNodeParams* params) {
  Task task;
  const cudaError_t made = host_task(params, task);
  return set(exec, node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                               cudaEvent_t event) {
  Task task;
  const cudaError_t made = event_task(cudaGraphNodeTypeEventRecord, event, task);
  return set(exec, node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                             cudaEvent_t event) {
  Task task;
  const cudaError_t made = event_task(cudaGraphNodeTypeWaitEvent, event, task);
  return set(exec, node, made, std::move(task));
}
cudaError_t lockstep_host_cudaGraphNodeSetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node, unsigned int enabled) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto exec = find_exec(handle);
  if (!exec) return cudaErrorInvalidValue;
  return exec->set_enabled(reinterpret_cast<const Node*>(node), enabled != 0) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaGraphNodeGetEnabled(cudaGraphExec_t handle, cudaGraphNode_t node, unsigned int* enabled) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto exec = find_exec(handle);
  if (!exec || enabled == nullptr) return cudaErrorInvalidValue;
  const auto known = exec->enabled(reinterpret_cast<const Node*>(node));
  if (!known) return cudaErrorInvalidValue;
  *enabled = *known ? 1 : 0;
  return cudaSuccess;
}

// --- user objects ---

cudaError_t lockstep_host_cudaUserObjectCreate(cudaUserObject_t* object, void* pointer, cudaHostFn_t destroy,
                                               unsigned int count, unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  if (object == nullptr || destroy == nullptr || count == 0 || flags != cudaUserObjectNoDestructorSync)
    return cudaErrorInvalidValue;
  *object = create_user_object(pointer, destroy, count);
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return retain_user_object(object, count) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  return release_user_object(object, count) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t lockstep_host_cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count,
                                                    unsigned int flags) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph || count == 0 || flags > cudaGraphUserObjectMove) return cudaErrorInvalidValue;
  if (!retain_user_object(object, flags == cudaGraphUserObjectMove ? 0 : count)) return cudaErrorInvalidValue;
  for (unsigned int i = 0; i < count; ++i) graph->user_objects.push_back(std::make_shared<UserReference>(object));
  return cudaSuccess;
}
cudaError_t lockstep_host_cudaGraphReleaseUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count) {
  if (const cudaError_t e = lockstep_host_sticky_error()) return e;
  const auto graph = find_graph(handle);
  if (!graph || count == 0) return cudaErrorInvalidValue;
  for (unsigned int i = 0; i < count; ++i) {
    const auto held = std::find_if(graph->user_objects.begin(), graph->user_objects.end(),
                                   [&](const auto& reference) { return reference->object == object; });
    if (held == graph->user_objects.end()) return cudaErrorInvalidValue;
    graph->user_objects.erase(held);
  }
  return cudaSuccess;
}
