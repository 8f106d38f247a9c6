// SPDX-License-Identifier: MIT
//
// See graph.h.

#include "reference/cuda/graph.h"

#include <algorithm>
#include <unordered_set>

#include "reference/cuda/activity.h"
#include "reference/cuda/engine.h"
#include "reference/cuda/host_call.h"

namespace lockstep::host {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::unordered_map<cudaGraph_t, std::weak_ptr<Graph>> lent;  // of child nodes
  std::unordered_map<cudaGraphExec_t, std::shared_ptr<Exec>> execs;
  std::unordered_set<const Node*> nodes;
  std::unordered_set<void*> memory;  // of graphs
};
Registry& registry() {
  static Registry* const the_one = new Registry;  // never destroyed; see engine.h
  return *the_one;
}

// Nodes so that each stands behind all it waits for, those made first as far ahead as can be; fewer than all if there
// is a circle.
std::vector<const Node*> in_order(const Graph& graph) {
  std::vector<const Node*> order;
  std::unordered_set<const Node*> placed;
  std::vector<const Node*> left;
  for (const auto& node : graph.nodes) left.push_back(node.get());
  for (bool moved = true; moved && !left.empty();) {
    moved = false;
    std::vector<const Node*> later;
    for (const Node* node : left) {
      const bool ready = std::all_of(node->after.begin(), node->after.end(),
                                     [&](const Node* before) { return placed.count(before) != 0; });
      if (ready) {
        order.push_back(node);
        placed.insert(node);
        moved = true;
      } else {
        later.push_back(node);
      }
    }
    left = std::move(later);
  }
  return order;
}

}  // namespace

GraphMemory::GraphMemory(void* at) : pointer(at) {
  const std::lock_guard lock(registry().mutex);
  registry().memory.insert(at);
}
GraphMemory::~GraphMemory() {
  {
    const std::lock_guard lock(registry().mutex);
    registry().memory.erase(pointer);
  }
  engine().free(pointer);
}
bool is_graph_memory(void* pointer) {
  const std::lock_guard lock(registry().mutex);
  return registry().memory.count(pointer) != 0;
}

Graph::~Graph() {
  const std::lock_guard lock(registry().mutex);
  for (const auto& node : nodes) registry().nodes.erase(node.get());
  registry().lent.erase(reinterpret_cast<cudaGraph_t>(this));
}

Node* Graph::add(Task task, std::vector<Node*> after) {
  auto node = std::make_unique<Node>();
  node->task = std::move(task);
  node->graph = this;
  node->after = std::move(after);
  nodes.push_back(std::move(node));
  const std::lock_guard lock(registry().mutex);
  registry().nodes.insert(nodes.back().get());
  return nodes.back().get();
}

void Graph::remove(Node* node) {
  for (const auto& other : nodes) std::erase(other->after, node);
  {
    const std::lock_guard lock(registry().mutex);
    registry().nodes.erase(node);
  }
  std::erase_if(nodes, [&](const auto& one) { return one.get() == node; });
}

std::shared_ptr<Graph> clone(const Graph& graph, std::unordered_map<const Node*, Node*>* copies) {
  auto copy = std::make_shared<Graph>();
  std::unordered_map<const Node*, Node*> own;
  auto& made = copies != nullptr ? *copies : own;
  for (const auto& node : graph.nodes) {
    Task task = node->task;
    if (const auto* child = std::get_if<std::shared_ptr<Graph>>(&task.what)) task.what = clone(**child, copies);
    made[node.get()] = copy->add(std::move(task), {});
  }
  for (const auto& node : graph.nodes)
    for (const Node* before : node->after) made[node.get()]->after.push_back(made[before]);
  copy->user_objects = graph.user_objects;
  return copy;
}

Point issue(const Task& task, const std::shared_ptr<Stream>& stream, std::vector<Point> after) {
  std::unique_ptr<Op> op;
  if (const auto* copy_params = std::get_if<cudaMemcpy3DParms>(&task.what)) {
    Copy copy;
    copy_of(*copy_params, copy);
    op = make_copy(copy);
  } else if (const auto* fill = std::get_if<cudaMemsetParams>(&task.what)) {
    op = make_fill(*fill);
  } else if (const auto* host = std::get_if<cudaHostNodeParams>(&task.what)) {
    op = make_host_call(*stream, [call = *host] { call.fn(call.userData); });
  } else if (const auto* recipe = std::get_if<Recipe>(&task.what)) {
    return (*recipe)(stream, std::move(after));
  } else if (const auto* use = std::get_if<EventUse>(&task.what)) {
    if (task.type == cudaGraphNodeTypeEventRecord) return use->event->record(stream, std::move(after));
    after.push_back(use->event->point());
  }
  return engine().submit(stream, op ? std::move(op) : make_marker(), std::move(after));
}

// --- instantiated graphs ---

std::shared_ptr<Exec> Exec::make(const Graph& graph) {
  std::shared_ptr<Exec> exec(new Exec);
  if (!exec->add_all(graph, {})) return nullptr;
  exec->assign_lanes();
  return exec;
}

Exec::~Exec() {
  for (const auto& lane : lanes_) engine().forget_stream(lane);
}

Exec::Indices Exec::ends_of(const Graph& graph) const {
  std::unordered_set<const Node*> waited_for;
  for (const auto& node : graph.nodes) waited_for.insert(node->after.begin(), node->after.end());
  Indices ends;
  for (const auto& node : graph.nodes)
    if (waited_for.count(node.get()) == 0) ends.push_back(index_.at(node.get()));
  return ends;
}

// A child graph becomes part of its parent: its roots wait for what the child's node waits for, and that node, left
// empty, for the child's ends.
bool Exec::add_all(const Graph& graph, const Indices& roots_after) {
  const auto order = in_order(graph);
  if (order.size() != graph.nodes.size()) return false;
  for (const Node* node : order) {
    Item item;
    item.task = node->task;
    for (const Node* before : node->after) item.after.push_back(index_.at(before));
    if (node->after.empty()) item.after = roots_after;
    if (const auto* child = std::get_if<std::shared_ptr<Graph>>(&node->task.what)) {
      if (!add_all(**child, item.after)) return false;
      const Indices ends = ends_of(**child);
      if (!ends.empty()) item.after = ends;
      item.task.what = std::monostate();
    }
    index_[node] = items_.size();
    items_.push_back(std::move(item));
  }
  user_objects_.insert(user_objects_.end(), graph.user_objects.begin(), graph.user_objects.end());
  return true;
}

// A step goes on the lane of one it waits for if nothing else has followed there yet, else on a lane of its own.
void Exec::assign_lanes() {
  std::vector<size_t> tails;  // by lane
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    size_t lane = tails.size();
    for (const size_t before : item.after) {
      items_[before].last_of_branch = false;
      if (tails[items_[before].lane] == before) lane = std::min(lane, items_[before].lane);
    }
    if (lane == tails.size()) tails.push_back(i);
    tails[lane] = i;
    item.lane = lane;
  }
  lane_count_ = tails.size();
}

// What a step must wait for beyond the order of its lane.
std::vector<Point> Exec::starts_after(const Item& item, const std::vector<Point>& ends, const Point& start,
                                      bool& lane_begun) const {
  std::vector<Point> after;
  for (const size_t before : item.after)
    if (items_[before].lane != item.lane) after.push_back(ends[before]);
  if (!lane_begun && item.lane != 0) after.push_back(start);
  lane_begun = true;
  return after;
}

Point Exec::launch(const std::shared_ptr<Stream>& stream, std::vector<Point> after) {
  const std::lock_guard lock(mutex_);
  const InGraph in_graph;
  while (lanes_.size() + 1 < lane_count_) lanes_.push_back(engine().add_lane(stream->device, stream->priority));
  after.push_back(last_);
  const bool chain = lane_count_ == 1;
  const Point start = chain ? Point{} : engine().submit(stream, make_marker(), std::exchange(after, {}));
  std::vector<Point> ends(items_.size());
  std::vector<Point> last_ones;
  std::vector<bool> begun(lane_count_, false);
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    bool lane_begun = begun[item.lane];
    std::vector<Point> waits = starts_after(item, ends, start, lane_begun);
    begun[item.lane] = lane_begun;
    waits.insert(waits.end(), after.begin(), after.end());  // a chain's first step: before it, nothing was enqueued
    after.clear();
    ends[i] =
        issue(item.enabled ? item.task : Task{}, item.lane == 0 ? stream : lanes_[item.lane - 1], std::move(waits));
    if (item.last_of_branch) last_ones.push_back(ends[i]);
  }
  last_ones.insert(last_ones.end(), after.begin(), after.end());
  last_ = chain && !items_.empty() ? ends.back() : engine().submit(stream, make_marker(), std::move(last_ones));
  return last_;
}

bool Exec::set_task(const Node* original, Task task) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(original);
  if (found == index_.end() || items_[found->second].task.type != task.type) return false;
  items_[found->second].task = std::move(task);
  return true;
}
bool Exec::set_enabled(const Node* original, bool enabled) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(original);
  if (found == index_.end()) return false;
  items_[found->second].enabled = enabled;
  return true;
}
std::optional<bool> Exec::enabled(const Node* original) const {
  const std::lock_guard lock(mutex_);
  const auto found = index_.find(original);
  if (found == index_.end()) return std::nullopt;
  return items_[found->second].enabled;
}

cudaGraphExecUpdateResult Exec::update(const Graph& graph) {
  const auto other = make(graph);
  if (!other) return cudaGraphExecUpdateError;
  const std::lock_guard lock(mutex_);
  if (items_.size() != other->items_.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].after != other->items_[i].after) return cudaGraphExecUpdateErrorTopologyChanged;
    if (items_[i].task.type != other->items_[i].task.type) return cudaGraphExecUpdateErrorNodeTypeChanged;
  }
  for (size_t i = 0; i < items_.size(); ++i) items_[i].task = other->items_[i].task;
  user_objects_ = other->user_objects_;
  return cudaGraphExecUpdateSuccess;
}

// --- handles ---

cudaGraph_t register_graph(const std::shared_ptr<Graph>& graph) {
  const auto handle = reinterpret_cast<cudaGraph_t>(graph.get());
  const std::lock_guard lock(registry().mutex);
  registry().graphs.emplace(handle, graph);
  return handle;
}
std::shared_ptr<Graph> find_graph(cudaGraph_t handle) {
  const std::lock_guard lock(registry().mutex);
  if (const auto found = registry().graphs.find(handle); found != registry().graphs.end()) return found->second;
  const auto lent = registry().lent.find(handle);
  return lent == registry().lent.end() ? nullptr : lent->second.lock();
}
cudaGraph_t lend_graph(const std::shared_ptr<Graph>& graph) {
  const auto handle = reinterpret_cast<cudaGraph_t>(graph.get());
  const std::lock_guard lock(registry().mutex);
  registry().lent[handle] = graph;
  return handle;
}
bool unregister_graph(cudaGraph_t handle) {
  std::shared_ptr<Graph> last;  // let go of outside the lock: its destructor takes it
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().graphs.find(handle);
  if (found == registry().graphs.end()) return false;
  last = std::move(found->second);
  registry().graphs.erase(found);
  return true;
}
Node* find_node(cudaGraphNode_t handle) {
  auto* node = reinterpret_cast<Node*>(handle);
  const std::lock_guard lock(registry().mutex);
  return registry().nodes.count(node) != 0 ? node : nullptr;
}
cudaGraphNode_t handle_of(const Node* node) { return reinterpret_cast<cudaGraphNode_t>(const_cast<Node*>(node)); }

cudaGraphExec_t register_exec(const std::shared_ptr<Exec>& exec) {
  const auto handle = reinterpret_cast<cudaGraphExec_t>(exec.get());
  const std::lock_guard lock(registry().mutex);
  registry().execs.emplace(handle, exec);
  return handle;
}
std::shared_ptr<Exec> find_exec(cudaGraphExec_t handle) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().execs.find(handle);
  return found == registry().execs.end() ? nullptr : found->second;
}
bool unregister_exec(cudaGraphExec_t handle) {
  std::shared_ptr<Exec> last;
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().execs.find(handle);
  if (found == registry().execs.end()) return false;
  last = std::move(found->second);
  registry().execs.erase(found);
  return true;
}

}  // namespace lockstep::host
