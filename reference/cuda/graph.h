// SPDX-License-Identifier: MIT
//
// Graphs: work with its order, made once (by hand or by capturing streams) and launched any number of times.
//
// An instantiated graph (Exec) is a list of steps in topological order, each on a lane. Lane 0 is the stream the graph
// is launched into, further lanes are streams of the Exec's own, one per branch: so branches run apart from each other,
// one that blocks holds up only what depends on it, and a graph that is a chain costs no more than its calls did.
// Launches of one Exec run one after the other, as in CUDA.

#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "reference/cuda/event.h"
#include "reference/cuda/user_object.h"
#include "reference/cuda/work.h"

namespace lockstep::host {

struct Graph;

struct EventUse {
  cudaEvent_t handle = nullptr;
  std::shared_ptr<Event> event;
};
// Memory that a captured cudaMallocAsync made: it lives as long as a graph that knows it.
struct GraphMemory {
  explicit GraphMemory(void* at);
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  void* const pointer;
};
bool is_graph_memory(void* pointer);

// Host function nodes, memory nodes and so on: `type` says which alternative holds.
struct Task {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::variant<std::monostate, cudaMemcpy3DParms, cudaMemsetParams, cudaHostNodeParams, EventUse,
               std::shared_ptr<Graph>, Recipe, std::shared_ptr<GraphMemory>>
      what;
};

struct Node {
  Task task;
  Graph* graph = nullptr;
  std::vector<Node*> after;
  const Node* original = nullptr;  // what cudaGraphClone made this one from; perhaps gone by now
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
  // Held until the graph and every Exec made of it are gone (cudaGraphRetainUserObject).
  std::vector<std::shared_ptr<UserReference>> user_objects;

  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  Node* add(Task task, std::vector<Node*> after);
  void remove(Node* node);
};

// A copy, and which node of it stands for which of the original.
std::shared_ptr<Graph> clone(const Graph& graph, std::unordered_map<const Node*, Node*>* copies = nullptr);

class Exec {
 public:
  // nullptr: the nodes wait for each other in a circle.
  static std::shared_ptr<Exec> make(const Graph& graph);
  ~Exec();
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  // Its work starts when everything in `after`, and what the stream has so far, is over.
  Point launch(const std::shared_ptr<Stream>& stream, std::vector<Point> after);

  bool set_task(const Node* original, Task task);  // false: no such node, or one of another type
  bool set_enabled(const Node* original, bool enabled);
  std::optional<bool> enabled(const Node* original) const;  // nothing: no such node
  cudaGraphExecUpdateResult update(const Graph& graph);

  unsigned long long flags = 0;  // as given when it was made

 private:
  struct Item {
    Task task;
    std::vector<size_t> after;
    size_t lane = 0;
    bool last_of_branch = true;  // nothing depends on it
    bool enabled = true;
  };
  using Indices = std::vector<size_t>;
  Exec() = default;
  bool add_all(const Graph& graph, const Indices& roots_after);
  Indices ends_of(const Graph& graph) const;
  void assign_lanes();
  std::vector<Point> starts_after(const Item& item, const std::vector<Point>& ends, const Point& start,
                                  bool& lane_begun) const;

  mutable std::mutex mutex_;
  std::vector<Item> items_;
  std::unordered_map<const Node*, size_t> index_;
  std::vector<std::shared_ptr<Stream>> lanes_;  // but lane 0
  size_t lane_count_ = 0;
  std::vector<std::shared_ptr<UserReference>> user_objects_;
  Point last_;
};

// Runs one node's work on a stream.
Point issue(const Task& task, const std::shared_ptr<Stream>& stream, std::vector<Point> after);

cudaGraph_t register_graph(const std::shared_ptr<Graph>& graph);
std::shared_ptr<Graph> find_graph(cudaGraph_t handle);
bool unregister_graph(cudaGraph_t handle);
cudaGraph_t lend_graph(const std::shared_ptr<Graph>& graph);  // a handle that keeps nothing alive
// nullptr: no node of a graph that exists.
Node* find_node(cudaGraphNode_t handle);
cudaGraphNode_t handle_of(const Node* node);

cudaGraphExec_t register_exec(const std::shared_ptr<Exec>& exec);
std::shared_ptr<Exec> find_exec(cudaGraphExec_t handle);
bool unregister_exec(cudaGraphExec_t handle);

}  // namespace lockstep::host
