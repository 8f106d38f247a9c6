// SPDX-License-Identifier: MIT
//
// One step through a frame by its call frame information, as the x86-64 ABI and the DWARF standard (section 6.4) define
// it: find the function's entry by the search table of its module, run the instructions up to the program counter, and
// read the caller's registers where they say.

#include "interpose/shim/libc.h"

#include <string.h>

#include "interpose/shim/modules.h"
#include "interpose/shim/unwind.h"

namespace lockstep::shim {
namespace {

// Reads forward through memory; after a failed read everything is 0 and `ok` is false.
struct Cursor {
  Memory& memory;
  uint64_t at, end;
  bool ok = true;

  bool more() const { return ok && at < end; }
  template <class T>
  T get() {
    T value = 0;
    ok = ok && memory.get(at, value);
    at += sizeof(T);
    return ok ? value : 0;
  }
  uint64_t uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      const uint8_t byte = get<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 127) << shift;
      if (!(byte & 128)) return value;
    }
    ok = false;
    return 0;
  }
  int64_t sleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
      const uint8_t byte = get<uint8_t>();
      if (shift < 64) value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte & 128) continue;
      if ((byte & 64) && shift + 7 < 64) value |= ~uint64_t{0} << (shift + 7);
      return static_cast<int64_t>(value);
    }
    ok = false;
    return 0;
  }
  // DW_EH_PE_*: the low half says how it is stored, 0x10 that it counts from its own place.
  uint64_t pointer(uint8_t encoding) {
    const uint64_t place = at;
    uint64_t value = 0;
    switch (encoding & 15) {
      case 0x0:
      case 0x4:
      case 0xc: value = get<uint64_t>(); break;
      case 0x1: value = uleb(); break;
      case 0x2: value = get<uint16_t>(); break;
      case 0x3: value = get<uint32_t>(); break;
      case 0x9: value = static_cast<uint64_t>(sleb()); break;
      case 0xa: value = static_cast<uint64_t>(static_cast<int64_t>(get<int16_t>())); break;
      case 0xb: value = static_cast<uint64_t>(static_cast<int64_t>(get<int32_t>())); break;
      default: ok = false;
    }
    if ((encoding & 0x70) == 0x10) value += place;
    return value;
  }
};

// What a function's entry and the header it shares with others say.
struct Frame {
  uint64_t start = 0, size = 0;
  uint64_t code_align = 1;
  int64_t data_align = 1;
  uint64_t return_register = kRip;
  uint8_t pointer_encoding = 0;
  bool signal = false;
  uint64_t common_at = 0, common_end = 0;  // instructions
  uint64_t own_at = 0, own_end = 0;
};

bool read_common(Memory& memory, uint64_t at, Frame& frame) {
  Cursor c{memory, at, at + 4};
  const uint32_t length = c.get<uint32_t>();
  if (!c.ok || length == 0 || length > 65536) return false;
  c.end = frame.common_end = at + 4 + length;
  if (c.get<uint32_t>() != 0) return false;
  const uint8_t version = c.get<uint8_t>();
  char augmentation[8] = {};
  for (char& letter : augmentation)
    if (!(letter = static_cast<char>(c.get<uint8_t>()))) break;
  if (augmentation[7]) return false;
  frame.code_align = c.uleb();
  frame.data_align = c.sleb();
  frame.return_register = version == 1 ? c.get<uint8_t>() : c.uleb();
  if (augmentation[0] == 'z') {
    const uint64_t size = c.uleb();
    frame.common_at = c.at + size;
    for (const char* letter = augmentation + 1; *letter && c.ok; letter++) {
      if (*letter == 'R') frame.pointer_encoding = c.get<uint8_t>();
      if (*letter == 'L') c.get<uint8_t>();
      if (*letter == 'P') c.pointer(c.get<uint8_t>() & 15);
      if (*letter == 'S') frame.signal = true;
    }
  } else {
    frame.common_at = c.at;
  }
  return c.ok;
}

bool read_frame(Memory& memory, uint64_t at, Frame& frame) {
  Cursor c{memory, at, at + 4};
  const uint32_t length = c.get<uint32_t>();
  if (!c.ok || length == 0 || length > 1u << 20) return false;
  c.end = frame.own_end = at + 4 + length;
  const uint64_t place = c.at;
  const uint32_t back = c.get<uint32_t>();
  if (!c.ok || back == 0 || !read_common(memory, place - back, frame)) return false;
  frame.start = c.pointer(frame.pointer_encoding);
  frame.size = c.pointer(frame.pointer_encoding & 15);
  char first = 0;
  if (!memory.get(place - back + 9, first)) return false;
  if (first == 'z') {
    const uint64_t size = c.uleb();
    c.at += size;
  }
  frame.own_at = c.at;
  return c.ok;
}

// The search table of a module: sorted pairs of 32-bit offsets from its own start. All linkers write this form.
bool find_frame(Memory& memory, uint64_t table, uint64_t pc, Frame& frame) {
  Cursor c{memory, table, table + 16};
  const uint32_t form = c.get<uint32_t>();
  if (!c.ok || (form & 0xff) != 1 || (form >> 16 & 0xff) != 0x03 || form >> 24 != 0x3b) return false;
  c.pointer(form >> 8 & 0xff);
  uint32_t low = 0, high = c.get<uint32_t>();
  const uint64_t entries = c.at;
  const auto start_of = [&](uint32_t i) {
    int32_t offset = 0;
    c.ok = c.ok && memory.get(entries + uint64_t{i} * 8, offset);
    return table + static_cast<uint64_t>(static_cast<int64_t>(offset));
  };
  if (!c.ok || high == 0) return false;
  while (high - low > 1 && c.ok) {
    const uint32_t middle = low + (high - low) / 2;
    (start_of(middle) <= pc ? low : high) = middle;
  }
  int32_t offset = 0;
  if (!c.ok || !memory.get(entries + uint64_t{low} * 8 + 4, offset)) return false;
  return read_frame(memory, table + static_cast<uint64_t>(static_cast<int64_t>(offset)), frame) && pc >= frame.start &&
         pc - frame.start < frame.size;
}

enum class Rule : uint8_t { same, undefined, at_offset, is_offset, at_expression, is_expression, in_register };
struct Row {
  Rule rule[kRegisters];
  int64_t value[kRegisters];  // offset from the CFA, place of an expression, or number of a register
  uint64_t cfa_register;
  int64_t cfa_offset;
  uint64_t cfa_expression;    // its place; 0 = register and offset
};

void set(Row& row, uint64_t number, Rule rule, int64_t value) {
  if (number >= kRegisters) return;
  row.rule[number] = rule;
  row.value[number] = value;
}

class Program {
 public:
  Program(Memory& memory, const Frame& frame, uint64_t pc) : memory_(memory), frame_(frame), pc_(pc) {}

  bool run(Row& row) {
    memset(&row, 0, sizeof row);
    uint64_t location = 0;  // the common part applies to all of the function
    if (!run(frame_.common_at, frame_.common_end, row, location)) return false;
    initial_ = row;
    location = frame_.start;
    return run(frame_.own_at, frame_.own_end, row, location);
  }

 private:
  bool run(uint64_t at, uint64_t end, Row& row, uint64_t& location) {
    Cursor c{memory_, at, end};
    for (unsigned steps = 0; c.more(); steps++) {
      if (steps > 4096) return false;
      const uint8_t op = c.get<uint8_t>();
      if (op >> 6 == 1)
        location += (op & 63) * frame_.code_align;
      else if (op >> 6 == 2)
        set(row, op & 63, Rule::at_offset, static_cast<int64_t>(c.uleb()) * frame_.data_align);
      else if (op >> 6 == 3)
        restore(row, op & 63);
      else if (!extended(op, c, row, location))
        return false;
      if (location > pc_) return c.ok;
    }
    return c.ok;
  }

  void restore(Row& row, uint64_t number) {
    if (number < kRegisters) set(row, number, initial_.rule[number], initial_.value[number]);
  }

  bool extended(uint8_t op, Cursor& c, Row& row, uint64_t& location) {
    switch (op) {
      case 0x00: return true;
      case 0x01: location = c.pointer(frame_.pointer_encoding); return true;
      case 0x02: location += c.get<uint8_t>() * frame_.code_align; return true;
      case 0x03: location += c.get<uint16_t>() * frame_.code_align; return true;
      case 0x04: location += c.get<uint32_t>() * frame_.code_align; return true;
      case 0x0a: return remember(row);
      case 0x0b: return recall(row);
      case 0x0c: row.cfa_register = c.uleb(); return cfa(row, static_cast<int64_t>(c.uleb()));
      case 0x0d: row.cfa_register = c.uleb(); return cfa(row, row.cfa_offset);
      case 0x0e: return cfa(row, static_cast<int64_t>(c.uleb()));
      case 0x12: row.cfa_register = c.uleb(); return cfa(row, c.sleb() * frame_.data_align);
      case 0x13: return cfa(row, c.sleb() * frame_.data_align);
      case 0x0f: row.cfa_expression = c.at; return skip_block(c);
      case 0x2e: c.uleb(); return true;
      default: return register_rule(op, c, row);
    }
  }

  bool register_rule(uint8_t op, Cursor& c, Row& row) {
    const uint64_t number = c.uleb();
    switch (op) {
      case 0x05: set(row, number, Rule::at_offset, static_cast<int64_t>(c.uleb()) * frame_.data_align); return true;
      case 0x06: restore(row, number); return true;
      case 0x07: set(row, number, Rule::undefined, 0); return true;
      case 0x08: set(row, number, Rule::same, 0); return true;
      case 0x09: set(row, number, Rule::in_register, static_cast<int64_t>(c.uleb())); return true;
      case 0x10: set(row, number, Rule::at_expression, static_cast<int64_t>(c.at)); return skip_block(c);
      case 0x11: set(row, number, Rule::at_offset, c.sleb() * frame_.data_align); return true;
      case 0x14: set(row, number, Rule::is_offset, static_cast<int64_t>(c.uleb()) * frame_.data_align); return true;
      case 0x15: set(row, number, Rule::is_offset, c.sleb() * frame_.data_align); return true;
      case 0x16: set(row, number, Rule::is_expression, static_cast<int64_t>(c.at)); return skip_block(c);
      default: return false;
    }
  }

  static bool cfa(Row& row, int64_t offset) {
    row.cfa_offset = offset;
    row.cfa_expression = 0;
    return true;
  }
  static bool skip_block(Cursor& c) {
    const uint64_t size = c.uleb();
    c.at += size;
    return c.ok && size < 4096;
  }
  bool remember(const Row& row) {
    if (depth_ == kMostRemembered) return false;
    remembered_[depth_++] = row;
    return true;
  }
  bool recall(Row& row) {
    if (depth_ == 0) return false;
    row = remembered_[--depth_];
    return true;
  }

  static constexpr unsigned kMostRemembered = 4;
  Memory& memory_;
  const Frame& frame_;
  uint64_t pc_;
  Row initial_, remembered_[kMostRemembered];
  unsigned depth_ = 0;
};

// The stack machine of DWARF expressions, as far as unwind tables use it.
bool evaluate(Memory& memory, uint64_t place, const Registers& registers, bool push_cfa, uint64_t cfa, uint64_t& result) {
  Cursor c{memory, place, place + 10};
  const uint64_t size = c.uleb();
  if (!c.ok || size > 4096) return false;
  c.end = c.at + size;
  uint64_t stack[16];
  unsigned depth = 0;
  const auto push = [&](uint64_t value) { return depth < 16 && (stack[depth++] = value, true); };
  if (push_cfa) push(cfa);
  const auto binary = [&](auto&& apply) {
    if (depth < 2) return false;
    stack[depth - 2] = static_cast<uint64_t>(apply(stack[depth - 2], stack[depth - 1]));
    depth--;
    return true;
  };
  while (c.more()) {
    const uint8_t op = c.get<uint8_t>();
    bool good = true;
    if (op >= 0x30 && op <= 0x4f) {
      good = push(op - 0x30u);
    } else if (op >= 0x70 && op <= 0x8f) {
      const unsigned number = op - 0x70u;
      good = number < kRegisters && registers.has(number);
      const int64_t offset = c.sleb();
      good = good && push(registers.value[number] + static_cast<uint64_t>(offset));
    } else {
      switch (op) {
        case 0x06: good = depth > 0 && memory.get(stack[depth - 1], stack[depth - 1]); break;
        case 0x08: good = push(c.get<uint8_t>()); break;
        case 0x09: good = push(static_cast<uint64_t>(static_cast<int64_t>(c.get<int8_t>()))); break;
        case 0x0a: good = push(c.get<uint16_t>()); break;
        case 0x0b: good = push(static_cast<uint64_t>(static_cast<int64_t>(c.get<int16_t>()))); break;
        case 0x0c: good = push(c.get<uint32_t>()); break;
        case 0x0d: good = push(static_cast<uint64_t>(static_cast<int64_t>(c.get<int32_t>()))); break;
        case 0x0e:
        case 0x0f: good = push(c.get<uint64_t>()); break;
        case 0x10: good = push(c.uleb()); break;
        case 0x11: good = push(static_cast<uint64_t>(c.sleb())); break;
        case 0x12: good = depth > 0 && push(stack[depth - 1]); break;
        case 0x13: good = depth > 0 && (depth--, true); break;
        case 0x1a: good = binary([](uint64_t a, uint64_t b) { return a & b; }); break;
        case 0x1c: good = binary([](uint64_t a, uint64_t b) { return a - b; }); break;
        case 0x1e: good = binary([](uint64_t a, uint64_t b) { return a * b; }); break;
        case 0x21: good = binary([](uint64_t a, uint64_t b) { return a | b; }); break;
        case 0x22: good = binary([](uint64_t a, uint64_t b) { return a + b; }); break;
        case 0x23: good = depth > 0 && (stack[depth - 1] += c.uleb(), true); break;
        case 0x24: good = binary([](uint64_t a, uint64_t b) { return b < 64 ? a << b : 0; }); break;
        case 0x25: good = binary([](uint64_t a, uint64_t b) { return b < 64 ? a >> b : 0; }); break;
        case 0x29: good = binary([](uint64_t a, uint64_t b) { return a == b; }); break;
        case 0x2a: good = binary([](uint64_t a, uint64_t b) { return int64_t(a) >= int64_t(b); }); break;
        case 0x2b: good = binary([](uint64_t a, uint64_t b) { return int64_t(a) > int64_t(b); }); break;
        case 0x2c: good = binary([](uint64_t a, uint64_t b) { return int64_t(a) <= int64_t(b); }); break;
        case 0x2d: good = binary([](uint64_t a, uint64_t b) { return int64_t(a) < int64_t(b); }); break;
        case 0x2e: good = binary([](uint64_t a, uint64_t b) { return a != b; }); break;
        case 0x96: break;
        default: good = false;
      }
    }
    if (!good) return false;
  }
  if (!c.ok || depth == 0) return false;
  result = stack[depth - 1];
  return true;
}

bool find_cfa(Memory& memory, const Row& row, const Registers& registers, uint64_t& cfa) {
  if (row.cfa_expression) return evaluate(memory, row.cfa_expression, registers, false, 0, cfa);
  if (row.cfa_register >= kRegisters || !registers.has(static_cast<unsigned>(row.cfa_register))) return false;
  cfa = registers.value[row.cfa_register] + static_cast<uint64_t>(row.cfa_offset);
  return true;
}

void apply(Memory& memory, const Row& row, unsigned number, uint64_t cfa, const Registers& old, Registers& out) {
  const uint64_t offset = cfa + static_cast<uint64_t>(row.value[number]);
  const auto place = static_cast<uint64_t>(row.value[number]);
  uint64_t value = 0;
  bool known = false;
  switch (row.rule[number]) {
    case Rule::same:
      value = old.value[number];
      known = old.has(number) && number != kRip;
      break;
    case Rule::undefined: break;
    case Rule::at_offset: known = memory.get(offset, value); break;
    case Rule::is_offset: value = offset, known = true; break;
    case Rule::at_expression:
      known = evaluate(memory, place, old, true, cfa, value) && memory.get(value, value);
      break;
    case Rule::is_expression: known = evaluate(memory, place, old, true, cfa, value); break;
    case Rule::in_register:
      known = place < kRegisters && old.has(static_cast<unsigned>(place));
      value = known ? old.value[place] : 0;
      break;
  }
  if (known) out.set(number, value);
}

}  // namespace

Step step_by_tables(Registers& registers, Memory& memory, bool exact, bool& next_exact) {
  const uint64_t pc = registers.value[kRip] - (exact ? 0 : 1);
  const uint64_t table = unwind_table_of(pc);
  Frame frame;
  if (table == 0 || !find_frame(memory, table, pc, frame) || frame.return_register != kRip) return Step::stuck;
  Row row;
  if (!Program(memory, frame, pc).run(row)) return Step::stuck;
  if (row.rule[kRip] == Rule::undefined) return Step::end;  // the outermost frame says so
  uint64_t cfa;
  if (!find_cfa(memory, row, registers, cfa)) return Step::stuck;
  Registers out = {};
  for (unsigned i = 0; i < kRegisters; i++) apply(memory, row, i, cfa, registers, out);
  if (row.rule[kRsp] == Rule::same) out.set(kRsp, cfa);
  if (!out.has(kRip)) return Step::stuck;
  if (out.value[kRip] == 0) return Step::end;
  next_exact = frame.signal;
  registers = out;
  return Step::done;
}

}  // namespace lockstep::shim
