// SPDX-License-Identifier: MIT
//
// See random_program.h.

#include "tests/reference/random_program.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <sstream>
#include <type_traits>

#include "reference/nccl/half.h"

namespace lockstep::test {
namespace {

constexpr int kSteps = 60;

// --- drawing

class Draw {
 public:
  Draw(unsigned seed, const Shape& shape) : random_(seed) {
    program_.shape = shape;
    const auto n = static_cast<size_t>(shape.ranks);
    const size_t lengths[] = {8, 64, 64, 800, 800, 6000, 60000 / n, 400000 / n};
    program_.length = 8 * n * (1 + below(lengths[below(std::size(lengths))] / n + 1));
  }

  Program program() {
    while (program_.steps.size() < kSteps) {
      const size_t wanted = below(3) == 0 ? 2 + below(2) : 1;
      Step step;
      std::vector<size_t> used;
      for (size_t i = 0; i < wanted; ++i) {
        Operation operation = one(used, wanted > 1);
        used.insert(used.end(), {operation.src, operation.dst});
        step.push_back(std::move(operation));
      }
      // What one communicator has in a group is launched at once, and the communicators must have one order on all
      // ranks, on those too that have no part in some of the messages.
      const int first = static_cast<int>(below(2));
      std::stable_sort(step.begin(), step.end(),
                       [first](const Operation& a, const Operation& b) { return a.comm == first && b.comm != first; });
      for (const Operation& operation : step)
        if (needs_fill(operation)) program_.steps.push_back({fill_before(operation)});
      program_.steps.push_back(std::move(step));
    }
    return std::move(program_);
  }

 private:
  size_t below(size_t limit) { return random_() % limit; }
  size_t unused(const std::vector<size_t>& used) {
    for (;;) {
      const size_t buffer = below(kBuffers);
      if (std::find(used.begin(), used.end(), buffer) == used.end()) return buffer;
    }
  }
  // How many of something there is room for: often all, sometimes none.
  size_t up_to(size_t most) { return below(8) == 0 ? 0 : (below(3) == 0 ? most : below(most + 1)); }
  size_t offset(size_t bytes_used, size_t element) {
    return below((program_.length - bytes_used) / element + 1) * element;
  }

  static bool needs_fill(const Operation& operation) {
    const bool real = operation.dtype >= ncclFloat16 && operation.dtype <= ncclBfloat16;
    return reduces(operation.kind) && real;
  }
  Operation fill_before(const Operation& reduction) {
    Operation fill;
    fill.kind = Kind::fill;
    fill.src = fill.dst = reduction.src;
    fill.dtype = reduction.dtype;
    fill.count = program_.length / size_of(fill.dtype);
    fill.value = static_cast<unsigned>(below(1000));
    return fill;
  }

  Operation one(std::vector<size_t> used, bool in_group) {
    Operation operation;
    operation.kind = static_cast<Kind>(below(static_cast<size_t>(in_group ? Kind::copy : Kind::fill)));
    operation.comm = static_cast<int>(below(2));
    operation.src = unused(used);
    used.push_back(operation.src);
    operation.dst = unused(used);
    operation.value = static_cast<unsigned>(below(256));
    operation.dtype = static_cast<ncclDataType_t>(below(ncclNumTypes));
    const auto n = program_.members(operation.comm).size();
    if (reduces(operation.kind)) choose_reduction(operation, n);
    operation.root = static_cast<int>(below(n));
    operation.in_place = below(4) == 0 && can_be_in_place(operation.kind);
    if (operation.in_place) operation.dst = operation.src;
    if (operation.kind == Kind::messages)
      many_messages(operation, n);
    else if (operation.kind == Kind::one_message)
      one_message(operation, n);
    else
      place(operation, n);
    return operation;
  }

  static bool can_be_in_place(Kind kind) { return kind <= Kind::scatter && kind != Kind::all_to_all; }

  void choose_reduction(Operation& operation, size_t n) {
    operation.dtype = static_cast<ncclDataType_t>(below(ncclBfloat16 + 1));
    operation.op = static_cast<ncclRedOp_t>(below(ncclNumOps));
    // 1/n is rounded, and so is what it is multiplied with, unless n is a power of two.
    const bool power_of_two = (n & (n - 1)) == 0;
    const bool real = operation.dtype >= ncclFloat16;
    if (operation.op == ncclAvg && real && !power_of_two) operation.op = ncclSum;
  }

  // Counts and places such that everything fits, whatever the rank.
  void place(Operation& operation, size_t n) {
    const size_t element = size_of(operation.dtype);
    const Kind kind = operation.kind;
    const bool send_is_large = kind == Kind::reduce_scatter || kind == Kind::scatter || kind == Kind::all_to_all;
    const bool recv_is_large = kind == Kind::all_gather || kind == Kind::gather || kind == Kind::all_to_all;
    const size_t blocks = send_is_large || recv_is_large ? n : 1;
    operation.count = up_to(program_.length / (element * blocks));
    const size_t block = operation.count * element;
    operation.src_at = offset(send_is_large || operation.in_place ? block * blocks : block, element);
    operation.dst_at = operation.in_place ? operation.src_at : offset(recv_is_large ? block * blocks : block, element);
  }

  void one_message(Operation& operation, size_t n) {
    const size_t element = size_of(operation.dtype);
    Message message;
    message.from = static_cast<int>(below(n));
    message.to = static_cast<int>((static_cast<size_t>(message.from) + 1 + below(n - 1)) % n);
    message.send_count = message.recv_count = up_to(program_.length / element);
    message.send_at = offset(message.send_count * element, element);
    message.recv_at = offset(message.recv_count * element, element);
    operation.messages.push_back(message);
  }

  // Every rank's buffer has a slot for each message it may get; some stay empty.
  void many_messages(Operation& operation, size_t n) {
    const size_t element = size_of(operation.dtype);
    const size_t slots = 1 + below(4);
    const size_t slot = program_.length / slots / element;
    std::vector<size_t> taken(n, 0);
    for (size_t i = 0; i < n * slots; ++i) {
      Message message;
      message.from = static_cast<int>(below(n));
      message.to = static_cast<int>(below(4) == 0 ? static_cast<size_t>(message.from) : below(n));
      size_t& next = taken[static_cast<size_t>(message.to)];
      if (next == slots) continue;
      message.send_count = up_to(slot);
      message.recv_count = message.send_count;
      if (below(8) == 0) message.recv_count = below(message.send_count + 1);  // takes what it has room for
      message.send_at = offset(message.send_count * element, element);
      message.recv_at = next++ * slot * element;
      operation.messages.push_back(message);
    }
  }

  std::mt19937 random_;
  Program program_;
};

// --- arithmetic

template <class T>
T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

double to_double(float x) { return static_cast<double>(x); }
double to_double(double x) { return x; }
double to_double(nccl::Half x) { return static_cast<double>(x.to_float()); }
double to_double(nccl::Bfloat16 x) { return static_cast<double>(x.to_float()); }
template <class T>
T from_double(double x) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(x);
  else
    return T::from_float(static_cast<float>(x));
}

using Inputs = std::vector<const uint8_t*>;  // one element of each rank

template <class T>
T reduce_integers(ncclRedOp_t op, const Inputs& inputs) {
  using Unsigned = std::make_unsigned_t<T>;
  auto result = load<T>(inputs[0]);
  for (size_t i = 1; i < inputs.size(); ++i) {
    const auto next = load<T>(inputs[i]);
    const auto a = static_cast<uint64_t>(static_cast<Unsigned>(result));
    const auto b = static_cast<uint64_t>(static_cast<Unsigned>(next));
    if (op == ncclSum || op == ncclAvg) result = static_cast<T>(static_cast<Unsigned>(a + b));
    if (op == ncclProd) result = static_cast<T>(static_cast<Unsigned>(a * b));
    if (op == ncclMax) result = std::max(result, next);
    if (op == ncclMin) result = std::min(result, next);
  }
  if (op != ncclAvg) return result;
  if constexpr (std::is_signed_v<T>)
    return static_cast<T>(static_cast<int64_t>(result) / static_cast<int64_t>(inputs.size()));
  else
    return static_cast<T>(static_cast<uint64_t>(result) / inputs.size());
}

template <class T>
T reduce_reals(ncclRedOp_t op, const Inputs& inputs) {
  double result = to_double(load<T>(inputs[0]));
  for (size_t i = 1; i < inputs.size(); ++i) {
    const double next = to_double(load<T>(inputs[i]));
    if (op == ncclSum || op == ncclAvg) result += next;
    if (op == ncclProd) result *= next;
    if (op == ncclMax) result = std::max(result, next);
    if (op == ncclMin) result = std::min(result, next);
  }
  if (op == ncclAvg) result /= static_cast<double>(inputs.size());
  return from_double<T>(result);
}

void reduce_one(ncclDataType_t dtype, ncclRedOp_t op, const Inputs& in, uint8_t* out) {
  switch (dtype) {
    case ncclInt8:
      return store(out, reduce_integers<int8_t>(op, in));
    case ncclUint8:
      return store(out, reduce_integers<uint8_t>(op, in));
    case ncclInt32:
      return store(out, reduce_integers<int32_t>(op, in));
    case ncclUint32:
      return store(out, reduce_integers<uint32_t>(op, in));
    case ncclInt64:
      return store(out, reduce_integers<int64_t>(op, in));
    case ncclUint64:
      return store(out, reduce_integers<uint64_t>(op, in));
    case ncclFloat16:
      return store(out, reduce_reals<nccl::Half>(op, in));
    case ncclFloat32:
      return store(out, reduce_reals<float>(op, in));
    case ncclFloat64:
      return store(out, reduce_reals<double>(op, in));
    case ncclBfloat16:
      return store(out, reduce_reals<nccl::Bfloat16>(op, in));
    default:
      return;
  }
}

// --- one operation after the other

class Machine {
 public:
  explicit Machine(const Program& program) : program_(program) {
    for (int rank = 0; rank < program.shape.ranks; ++rank) {
      Memory& memory = ranks_.emplace_back();
      for (size_t b = 0; b < kBuffers; ++b) memory.push_back(initial(rank, b, program.length));
    }
  }
  std::vector<Memory> run() {
    for (const Step& step : program_.steps)
      for (const Operation& operation : step) communicates(operation.kind) ? together(operation) : alone(operation);
    return std::move(ranks_);
  }

 private:
  void alone(const Operation& op) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      uint8_t* const to = ranks_[r][op.dst].data() + op.dst_at;
      const size_t bytes = op.count * size_of(op.dtype);
      if (op.kind == Kind::set) std::fill_n(to, bytes, static_cast<uint8_t>(op.value));
      if (op.kind == Kind::add) add_to(to, bytes, static_cast<unsigned>(r) + op.value);
      if (op.kind == Kind::fill) fill_exact(to, bytes, op.dtype, static_cast<unsigned>(r) + op.value);
      if (op.kind == Kind::copy || op.kind == Kind::copy_by_host)
        std::copy_n(ranks_[r][op.src].data() + op.src_at, bytes, to);
    }
  }

  // Sources are read before anything is written: an operation in place has both in one buffer.
  void together(const Operation& op) {
    const std::vector<int> members = program_.members(op.comm);
    std::vector<Bytes> src;
    for (const int rank : members) src.push_back(ranks_[static_cast<size_t>(rank)][op.src]);
    const auto out = [&](size_t rank) { return ranks_[static_cast<size_t>(members[rank])][op.dst].data(); };
    const size_t element = size_of(op.dtype);
    for (const Message& m : op.messages)
      std::copy_n(src[static_cast<size_t>(m.from)].data() + m.send_at, m.recv_count * element,
                  out(static_cast<size_t>(m.to)) + m.recv_at);
    if (op.messages.empty())
      for (size_t rank = 0; rank < members.size(); ++rank) collective(op, src, rank, out(rank));
  }

  // What one rank of the communicator gets. In place, a rank's own block stands at its place among the others.
  static void collective(const Operation& op, const std::vector<Bytes>& src, size_t rank, uint8_t* out) {
    const size_t n = src.size();
    const size_t element = size_of(op.dtype);
    const size_t block = op.count * element;
    const auto root = static_cast<size_t>(op.root);
    const auto own_block = [&](size_t of) {  // where a rank sends one block from, of those that gather
      return src[of].data() + op.src_at + (op.in_place && sends_from_slot(op, of) ? of * block : 0);
    };
    const size_t dst_at = op.dst_at + (op.in_place && receives_in_slot(op, rank) ? rank * block : 0);
    const auto reduce_from = [&](size_t offset) {
      Inputs inputs(n);
      for (size_t i = 0; i < op.count; ++i) {
        for (size_t r = 0; r < n; ++r) inputs[r] = src[r].data() + op.src_at + offset + i * element;
        reduce_one(op.dtype, op.op, inputs, out + dst_at + i * element);
      }
    };
    switch (op.kind) {
      case Kind::all_reduce:
        return reduce_from(0);
      case Kind::reduce:
        if (rank == root) reduce_from(0);
        return;
      case Kind::reduce_scatter:
        return reduce_from(rank * block);
      case Kind::broadcast:
        std::copy_n(src[root].data() + op.src_at, block, out + dst_at);
        return;
      case Kind::all_gather:
        for (size_t r = 0; r < n; ++r) std::copy_n(own_block(r), block, out + dst_at + r * block);
        return;
      case Kind::gather:
        for (size_t r = 0; r < n && rank == root; ++r) std::copy_n(own_block(r), block, out + dst_at + r * block);
        return;
      case Kind::scatter:
        std::copy_n(src[root].data() + op.src_at + rank * block, block, out + dst_at);
        return;
      case Kind::all_to_all:
        for (size_t r = 0; r < n; ++r)
          std::copy_n(src[r].data() + op.src_at + rank * block, block, out + dst_at + r * block);
        return;
      default:
        return;
    }
  }

 public:
  static bool sends_from_slot(const Operation& op, size_t rank) {
    return op.kind == Kind::all_gather || (op.kind == Kind::gather && rank == static_cast<size_t>(op.root));
  }
  static bool receives_in_slot(const Operation& op, size_t rank) {
    return op.kind == Kind::reduce_scatter || (op.kind == Kind::scatter && rank == static_cast<size_t>(op.root));
  }

 private:
  const Program& program_;
  std::vector<Memory> ranks_;
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ull;
  return x ^ (x >> 29);
}

}  // namespace

std::vector<int> Program::members(int comm) const {
  if (comm == 1) return shape.second;
  std::vector<int> all(static_cast<size_t>(shape.ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Program draw(unsigned seed, const Shape& shape) { return Draw(seed, shape).program(); }

Bytes initial(int rank, size_t buffer, size_t length) {
  Bytes bytes(length);
  for (size_t i = 0; i < length; ++i)
    bytes[i] = static_cast<uint8_t>(mix((static_cast<uint64_t>(rank) << 40) + (buffer << 32) + i) >> 20);
  return bytes;
}

std::vector<Memory> simulate(const Program& program) { return Machine(program).run(); }

uint64_t hash(const uint8_t* at, size_t length) {
  uint64_t h = length;
  for (size_t i = 0; i < length; ++i) h = (h ^ at[i]) * 0x100000001b3ull;
  return mix(h);
}

size_t size_of(ncclDataType_t dtype) {
  constexpr size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[dtype];
}

void add_to(uint8_t* at, size_t length, unsigned value) {
  for (size_t i = 0; i < length; ++i) at[i] = static_cast<uint8_t>(at[i] + value);
}

// Sums of 16 of them have at most six bits, and so have averages over powers of two.
void fill_exact(uint8_t* at, size_t length, ncclDataType_t dtype, unsigned value) {
  constexpr double values[] = {1, -1, 2, 0.5};
  const size_t element = size_of(dtype);
  for (size_t i = 0; i < length / element; ++i) {
    const double x = values[mix(value * 7919u + i) >> 7 & 3];
    uint8_t* const to = at + i * element;
    if (dtype == ncclFloat16) store(to, from_double<nccl::Half>(x));
    if (dtype == ncclBfloat16) store(to, from_double<nccl::Bfloat16>(x));
    if (dtype == ncclFloat32) store(to, static_cast<float>(x));
    if (dtype == ncclFloat64) store(to, x);
  }
}

std::string describe(const Operation& op) {
  static constexpr const char* names[] = {"all_reduce", "reduce",       "broadcast", "all_gather", "reduce_scatter",
                                          "all_to_all", "gather",       "scatter",   "messages",   "one_message",
                                          "copy",       "copy_by_host", "set",       "add",        "fill"};
  std::ostringstream text;
  text << names[static_cast<size_t>(op.kind)] << " comm " << op.comm << " type " << op.dtype << " op " << op.op
       << " root " << op.root << " count " << op.count << " from " << op.src << "+" << op.src_at << " to " << op.dst
       << "+" << op.dst_at << (op.in_place ? " in place" : "") << " messages " << op.messages.size();
  return text.str();
}

}  // namespace lockstep::test
