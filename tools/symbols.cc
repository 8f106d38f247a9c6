// SPDX-License-Identifier: MIT
#include "tools/symbols.h"

#include <cxxabi.h>
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

 private:
  // libdwfl finds the unit of an address by .debug_aranges alone, which clang writes only when told to: where that
  // finds nothing, the units are asked one by one.
  const char* source_line(uint64_t address, int& number) const {
    if (Dwfl_Line* line = dwfl_module_getsrc(module, address))
      return dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
    Dwarf_Addr bias = 0;
    for (Dwarf_Die* unit = nullptr; (unit = dwfl_module_nextcu(module, unit, &bias)) != nullptr;) {
      if (dwarf_haspc(unit, address - bias) != 1) continue;
      Dwarf_Line* line = dwarf_getsrc_die(unit, address - bias);
      if (!line || dwarf_lineno(line, &number) != 0) return nullptr;
      return dwarf_linesrc(line, nullptr, nullptr);
    }
    return nullptr;
  }
};

// Names come from this machine's files or not at all; a diagnosis asks no server.
Symbolizer::Symbolizer() { unsetenv("DEBUGINFOD_URLS"); }
Symbolizer::~Symbolizer() = default;

Symbolizer::Library* Symbolizer::library(const std::string& path, const std::string& build_id) {
  std::unique_ptr<Library>& place = libraries_[path + "\n" + build_id];
  if (!place) place = std::make_unique<Library>(path, build_id);
  return place.get();
}

Frame Symbolizer::name(const TraceFile& file, uint64_t pc, bool exact) {
  Frame frame;
  const uint64_t lookup = exact || pc == 0 ? pc : pc - 1;
  const trace::Module* module = module_at(file, lookup);
  if (module) {
    frame.module = base_name(module->path);
    frame.offset = lookup - module->bias;
  } else {
    frame.offset = lookup;
  }
  const auto known =
      std::find_if(file.symbols.begin(), file.symbols.end(), [&](const trace::Symbol& s) { return s.pc == pc; });
  if (known != file.symbols.end() && !known->function.empty()) {
    frame.function = known->function;
    frame.file = known->file;
    frame.line = known->line;
    if (!frame.file.empty()) return frame;
  }
  if (module && !module->path.empty() && module->path[0] == '/') {
    Frame found = frame;
    library(module->path, module->build_id)->name(lookup - module->bias, found);
    if (!found.function.empty()) return found;
  }
  return frame;
}

std::vector<Frame> Symbolizer::name_all(const TraceFile& file, const std::vector<uint64_t>& pcs, bool innermost_exact) {
  std::vector<Frame> frames;
  for (size_t i = 0; i < pcs.size(); i++) frames.push_back(name(file, pcs[i], innermost_exact && i == 0));
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

const Frame* users_frame(const std::vector<Frame>& frames) {
  static const std::set<std::string> libraries = {"libc.so.6",     "libpthread.so.0", "libm.so.6", "libstdc++.so.6",
                                                  "libgcc_s.so.1", "libgomp.so.1",    "[vdso]"};
  static const char* const prefixes[] = {
      "liblockstep.so", "libnccl",  "libcudart", "libcuda.so", "ld-linux", "libpython", "libunwind",
      "libmpi",         "libopen-", "mca_",      "libpmix",    "libprrte", "libucp",    "libuct",
      "libucs",         "libevent", "libfabric", "libibverbs", "libhwloc", "libnvidia", "libcupti"};
  for (const Frame& frame : frames) {
    if (libraries.count(frame.module) || frame.module.empty()) continue;
    if (std::any_of(std::begin(prefixes), std::end(prefixes),
                    [&](const char* prefix) { return starts_with(frame.module, prefix); }))
      continue;
    if (starts_with(frame.module, "libc-") || starts_with(frame.function, "std::")) continue;
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
