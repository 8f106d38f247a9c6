// SPDX-License-Identifier: MIT
#include "tools/explain/symbols.h"

#include <cxxabi.h>
#include <dwarf.h>
#include <elfutils/libdw.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace lockstep {
namespace {

using trace::TraceFile;

constexpr uint64_t kBase = 0x100000000;  // where a library is pretended to be loaded; any place does

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string hex(const unsigned char* bytes, int size) {
  std::string text;
  for (int i = 0; i < size; i++) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

const trace::Module* module_at(const TraceFile& file, uint64_t pc) {
  for (auto at = file.modules.rbegin(); at != file.modules.rend(); ++at)  // the newest map wins
    if (pc >= at->start && pc < at->end) return &*at;
  return nullptr;
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

}  // namespace

std::string demangled(const char* name) {
  int status = 0;
  char* plain = ::abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 && plain ? plain : name;
  std::free(plain);
  return text;
}

// One program or library, opened by libdw at kBase.
struct Symbolizer::Library {
  Dwfl* dwfl = nullptr;
  Dwfl_Module* module = nullptr;

  Library(const std::string& path, const std::string& build_id) {
    static const Dwfl_Callbacks callbacks = {dwfl_build_id_find_elf, dwfl_standard_find_debuginfo,
                                             dwfl_offline_section_address, nullptr};
    dwfl = dwfl_begin(&callbacks);
    if (!dwfl) return;
    dwfl_report_begin(dwfl);
    module = dwfl_report_elf(dwfl, path.c_str(), path.c_str(), -1, kBase, true);
    dwfl_report_end(dwfl, nullptr, nullptr);
    if (!module) return;
    GElf_Addr loaded_at = 0;
    if (!dwfl_module_getelf(module, &loaded_at)) module = nullptr;
    if (!module || build_id.empty()) return;
    const unsigned char* bits = nullptr;
    GElf_Addr address = 0;
    const int size = dwfl_module_build_id(module, &bits, &address);
    if (size > 0 && hex(bits, size) != build_id) module = nullptr;  // another build: its names would be wrong
  }
  ~Library() {
    if (dwfl) dwfl_end(dwfl);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void name(uint64_t file_address, Frame& frame) const {
    if (!module) return;
    // A program that is not relocatable keeps its own addresses.
    GElf_Addr low = 0, high = 0, bias = 0;
    dwfl_module_info(module, nullptr, &low, &high, nullptr, nullptr, nullptr, nullptr);
    dwfl_module_getelf(module, &bias);
    const uint64_t address = file_address + bias;
    GElf_Off offset = 0;
    GElf_Sym symbol;
    if (const char* found = dwfl_module_addrinfo(module, address, &offset, &symbol, nullptr, nullptr, nullptr))
      frame.function = demangled(found);
    int number = 0;
    if (const char* source = source_line(address, number)) {
      frame.file = source;
      frame.line = static_cast<uint32_t>(std::max(number, 0));
    }
  }

  bool has_debug_info() const {
    Dwarf_Addr bias = 0;
    return module && dwfl_module_getdwarf(module, &bias) != nullptr;
  }

  // The functions inlined at this address into `outermost`, which is what name() says, and that: innermost first. The
  // place in each but the innermost is that of the call which was inlined.
  std::vector<Frame> inlined(uint64_t file_address, Frame outermost) const {
    std::vector<Frame> frames;
    GElf_Addr elf_bias = 0;
    if (!module || !dwfl_module_getelf(module, &elf_bias)) return {outermost};
    const uint64_t address = file_address + elf_bias;
    Dwarf_Addr bias = 0;
    Dwarf_Die* unit = unit_at(address, bias);
    Dwarf_Files* files = nullptr;
    if (!unit || dwarf_getsrcfiles(unit, &files, nullptr) != 0) return {outermost};
    for (Dwarf_Die& scope : scopes_at(unit, address - bias)) {
      if (dwarf_tag(&scope) != DW_TAG_inlined_subroutine) continue;
      Frame frame = outermost;
      frame.function = function_of(&scope);
      frames.push_back(frame);
      Dwarf_Attribute attribute;
      Dwarf_Word line = 0, file = 0;
      dwarf_formudata(dwarf_attr(&scope, DW_AT_call_line, &attribute), &line);
      dwarf_formudata(dwarf_attr(&scope, DW_AT_call_file, &attribute), &file);
      const char* source = dwarf_filesrc(files, file, nullptr, nullptr);
      outermost.file = source ? source : "";
      outermost.line = static_cast<uint32_t>(line);
    }
    frames.push_back(outermost);
    return frames;
  }

 private:
  static std::string function_of(Dwarf_Die* die) {
    Dwarf_Attribute attribute;
    for (const unsigned int kind : {DW_AT_linkage_name, DW_AT_MIPS_linkage_name})
      if (const char* name = dwarf_formstring(dwarf_attr_integrate(die, kind, &attribute))) return demangled(name);
    const char* name = dwarf_diename(die);
    return name ? name : "";
  }

  // The scopes around an address, innermost first. dwarf_getscopes gives up at a namespace, which has no addresses of
  // its own, and clang writes functions into theirs.
  static std::vector<Dwarf_Die> scopes_at(Dwarf_Die* unit, Dwarf_Addr address) {
    std::vector<Dwarf_Die> scopes;
    add_scopes(unit, address, scopes);
    return scopes;
  }
  static bool add_scopes(Dwarf_Die* parent, Dwarf_Addr address, std::vector<Dwarf_Die>& innermost_first) {
    Dwarf_Die child;
    for (int end = dwarf_child(parent, &child); end == 0; end = dwarf_siblingof(&child, &child)) {
      const bool is_there = dwarf_haspc(&child, address) == 1;
      if (!is_there && !holds_functions(dwarf_tag(&child))) continue;
      const bool found = add_scopes(&child, address, innermost_first);
      if (is_there) innermost_first.push_back(child);
      if (is_there || found) return true;
    }
    return false;
  }
  static bool holds_functions(int tag) {
    return tag == DW_TAG_namespace || tag == DW_TAG_class_type || tag == DW_TAG_structure_type || tag == DW_TAG_module;
  }

  // libdwfl finds the unit of an address by .debug_aranges alone, which clang writes only when told to: where that
  // finds nothing, the units are asked one by one.
  Dwarf_Die* unit_at(uint64_t address, Dwarf_Addr& bias) const {
    if (Dwarf_Die* unit = dwfl_module_addrdie(module, address, &bias)) return unit;
    for (Dwarf_Die* unit = nullptr; (unit = dwfl_module_nextcu(module, unit, &bias)) != nullptr;)
      if (dwarf_haspc(unit, address - bias) == 1) return unit;
    return nullptr;
  }

  const char* source_line(uint64_t address, int& number) const {
    if (Dwfl_Line* line = dwfl_module_getsrc(module, address))
      return dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
    Dwarf_Addr bias = 0;
    Dwarf_Die* unit = unit_at(address, bias);
    Dwarf_Line* line = unit ? dwarf_getsrc_die(unit, address - bias) : nullptr;
    if (!line || dwarf_lineno(line, &number) != 0) return nullptr;
    return dwarf_linesrc(line, nullptr, nullptr);
  }
};

// Names come from this machine's files or not at all; a diagnosis asks no server.
Symbolizer::Symbolizer(std::string debug_dir) : debug_dir_(std::move(debug_dir)) { unsetenv("DEBUGINFOD_URLS"); }
Symbolizer::~Symbolizer() = default;

Symbolizer::Library* Symbolizer::library(const std::string& path, const std::string& build_id) {
  std::unique_ptr<Library>& place = libraries_[path + "\n" + build_id];
  if (!place) place = std::make_unique<Library>(path, build_id);
  return place.get();
}

// What is known of that file's functions, best with lines: the file, else what the user's folder has of it.
const Symbolizer::Library* Symbolizer::with_debug_info(const trace::Module& module) {
  const Library* own = library(module.path, module.build_id);
  if (debug_dir_.empty() || own->has_debug_info()) return own;
  std::vector<std::string> places;
  if (module.build_id.size() > 2) {
    const std::string by_id = module.build_id.substr(0, 2) + "/" + module.build_id.substr(2) + ".debug";
    places = {debug_dir_ + "/.build-id/" + by_id, debug_dir_ + "/" + by_id};
  }
  for (const std::string& name : {module.path, "/" + base_name(module.path)})
    for (const char* end : {".debug", ""}) places.push_back(debug_dir_ + name + end);
  for (const std::string& place : places)
    if (access(place.c_str(), R_OK) == 0)
      if (const Library* found = library(place, module.build_id); found->has_debug_info()) return found;
  return own;
}

namespace {

uint64_t address_of_call(uint64_t pc, bool exact) { return exact || pc == 0 ? pc : pc - 1; }

// What the trace itself says.
Frame recorded_frame(const TraceFile& file, const trace::Module* module, uint64_t pc, bool exact) {
  Frame frame;
  frame.offset = address_of_call(pc, exact) - (module ? module->bias : 0);
  if (module) frame.module = base_name(module->path);
  const auto known =
      std::find_if(file.symbols.begin(), file.symbols.end(), [&](const trace::Symbol& s) { return s.pc == pc; });
  if (known == file.symbols.end() || known->function.empty()) return frame;
  frame.function = known->function;
  frame.file = known->file;
  frame.line = known->line;
  return frame;
}

bool is_a_file(const trace::Module* module) { return module && !module->path.empty() && module->path[0] == '/'; }

}  // namespace

Frame Symbolizer::name(const TraceFile& file, uint64_t pc, bool exact) {
  const uint64_t address = address_of_call(pc, exact);
  const trace::Module* module = module_at(file, address);
  Frame frame = recorded_frame(file, module, pc, exact);
  if (!frame.file.empty() || !is_a_file(module)) return frame;
  Frame found = frame;
  with_debug_info(*module)->name(address - module->bias, found);
  return found.function.empty() ? frame : found;
}

std::vector<Frame> Symbolizer::frames_at(const TraceFile& file, uint64_t pc, bool exact) {
  const uint64_t address = address_of_call(pc, exact);
  const trace::Module* module = module_at(file, address);
  Frame frame = recorded_frame(file, module, pc, exact);
  // Without a build id nothing says that the file is still the one the trace speaks of.
  if (!is_a_file(module) || (module->build_id.empty() && !frame.function.empty())) return {frame};
  const Library* library = with_debug_info(*module);
  Frame found = frame;
  library->name(address - module->bias, found);
  if (found.function.empty()) return {frame};
  return library->inlined(address - module->bias, std::move(found));
}

std::vector<Frame> Symbolizer::name_all(const TraceFile& file, const std::vector<uint64_t>& pcs, bool innermost_exact) {
  std::vector<Frame> frames;
  for (size_t i = 0; i < pcs.size(); i++)
    for (Frame& frame : frames_at(file, pcs[i], innermost_exact && i == 0)) frames.push_back(std::move(frame));
  return frames;
}

namespace {

// "app::(anonymous namespace)::step(Batch const&)" is long; in a line of text the name alone says it.
std::string short_function(std::string function) {
  const std::string unnamed = "(anonymous namespace)::";
  for (size_t at; (at = function.find(unnamed)) != std::string::npos;) function.erase(at, unnamed.size());
  size_t open = function.find('(');
  if (open >= 8 && open != std::string::npos && function.compare(open - 8, 8, "operator") == 0)
    open = function.find('(', open + 1);
  function = function.substr(0, open);
  return function.size() <= 100 ? function : function.substr(0, 97) + "...";
}

}  // namespace

std::string frame_text(const Frame& frame) {
  if (frame.function.empty()) return fmt::format("{}+{:#x}", frame.module.empty() ? "?" : frame.module, frame.offset);
  const std::string function = short_function(frame.function);
  if (!frame.file.empty()) return fmt::format("{} ({}:{})", function, base_name(frame.file), frame.line);
  return frame.module.empty() ? function : fmt::format("{} ({})", function, frame.module);
}

std::string frame_json(const Frame& frame) {
  if (frame.function.empty()) return fmt::format("{}+{:#x}", frame.module.empty() ? "?" : frame.module, frame.offset);
  if (!frame.file.empty()) return fmt::format("{}:{} {}", base_name(frame.file), frame.line, frame.function);
  return frame.module.empty() ? frame.function : fmt::format("{} {}", frame.module, frame.function);
}

std::vector<Frame> without_noise(const std::vector<Frame>& frames) {
  std::vector<Frame> kept;
  for (const Frame& frame : frames) {
    const bool shim = starts_with(frame.module, "liblockstep.so");
    const bool start = frame.function == "_start" || starts_with(frame.function, "__libc_start") ||
                       frame.function == "start_thread" || frame.function == "clone" || frame.function == "clone3" ||
                       frame.function == "__clone3" || frame.function == "__clone";
    const bool nothing = frame.function.empty() && frame.module.empty();
    if (!shim && !start && !nothing) kept.push_back(frame);
  }
  return kept;
}

namespace {

// "app::f" of "std::vector<int> app::f<int>(std::vector<int> const&)"
std::string qualified_name(const std::string& function) {
  int depth = 0;
  size_t from = 0, to = 0;
  for (; to < function.size() && !(depth == 0 && function[to] == '('); to++) {
    depth += function[to] == '<';
    depth -= function[to] == '>';
    if (depth == 0 && function[to] == ' ') from = to + 1;
  }
  return function.substr(from, to - from);
}

// A sanitizer stands between the program and the C library, in a library or linked into the program.
bool is_interceptor(const Frame& frame) {
  return starts_with(frame.function, "__interceptor_") || starts_with(frame.function, "___interceptor_");
}

bool is_of_the_system(const Frame& frame) {
  return is_interceptor(frame) || starts_with(qualified_name(frame.function), "std::") ||
         starts_with(frame.file, "/usr/include/") || starts_with(frame.file, "/usr/lib/");
}

}  // namespace

const Frame* users_frame(const std::vector<Frame>& frames) {
  static const std::set<std::string> libraries = {"libc.so.6",     "libpthread.so.0", "libm.so.6", "libstdc++.so.6",
                                                  "libgcc_s.so.1", "libgomp.so.1",    "[vdso]"};
  static const char* const prefixes[] = {
      "liblockstep.so", "libnccl",  "libcudart", "libcuda.so", "ld-linux",   "libpython", "libunwind",
      "libmpi",         "libopen-", "mca_",      "libpmix",    "libprrte",   "libucp",    "libuct",
      "libucs",         "libevent", "libfabric", "libibverbs", "libhwloc",   "libnvidia", "libcupti",
      "libasan",        "libtsan",  "libubsan",  "liblsan",    "libclang_rt"};
  for (const Frame& frame : frames) {
    if (libraries.count(frame.module) || frame.module.empty()) continue;
    if (std::any_of(std::begin(prefixes), std::end(prefixes),
                    [&](const char* prefix) { return starts_with(frame.module, prefix); }))
      continue;
    if (starts_with(frame.module, "libc-") || is_of_the_system(frame)) continue;
    return &frame;
  }
  return nullptr;
}

void add_missing_symbols(TraceFile& file, Symbolizer& symbolizer) {
  std::set<uint64_t> known;
  for (const trace::Symbol& symbol : file.symbols) known.insert(symbol.pc);
  for (const trace::Snapshot& snapshot : file.snapshots)
    for (size_t i = 0; i < snapshot.pcs.size(); i++) {
      if (!known.insert(snapshot.pcs[i]).second) continue;
      const Frame frame = symbolizer.name(file, snapshot.pcs[i], i == 0);
      if (frame.function.empty()) continue;
      trace::Symbol symbol;
      symbol.pc = snapshot.pcs[i];
      symbol.function = frame.function;
      symbol.file = frame.file;
      symbol.line = frame.line;
      file.symbols.push_back(std::move(symbol));
    }
}

}  // namespace lockstep
