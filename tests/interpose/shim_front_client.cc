// SPDX-License-Identifier: MIT
//
// Plays NCCL that is linked into a program: tells tools of its calls as the real one does, through NVTX and through its
// profiler interface. The shim is not preloaded; it is loaded by path, as NVTX and NCCL load tools.
//
//   shim_front_client nvtx LIBRARY             ranges as NCCL pushes them, and ranges of a program
//   shim_front_client profiler LIBRARY SYMBOL  the events of one communicator's life
//   shim_front_client real LIBNCCL             a few calls of a real libnccl, which loads NVTX's injection library by itself

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <string>

#include "interpose/abi/nccl.h"

namespace {

// --- NVTX ------------------------------------------------------------------------------------------------------------------------

struct Attributes {
  uint16_t version = 3, size = 48;
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0, payload_count = 0;
  const void* payload = nullptr;
  int32_t message_type = 3;
  const void* message = nullptr;
};
struct PayloadData {
  uint64_t schema;
  size_t size;
  const void* bytes;
};

void* core[16];
void* core2[16];
void** core_table[16];
void** core2_table[16];

int module_functions(int module, void**** table, unsigned* size) {
  for (int i = 1; i < 16; i++) core_table[i] = &core[i], core2_table[i] = &core2[i];
  *table = module == 1 ? core_table : core2_table;
  *size = 16;
  return module == 1 || module == 5;
}
struct {
  size_t struct_size = sizeof(size_t) + sizeof(void*);
  int (*functions)(int, void****, unsigned*) = module_functions;
} callbacks;
const void* export_table(uint32_t id) { return id == 1 ? &callbacks : nullptr; }

template <class R, class... Args>
R call(void* function, Args... args) {
  return reinterpret_cast<R (*)(Args...)>(function)(args...);
}

void* domain;

const void* string(const char* text) { return call<const void*>(core2[10], domain, text); }

// As NCCL does: the payload stands in the attributes of the push.
template <class T>
void range(const char* name, const T& payload, bool inner = false) {
  const PayloadData data = {77, sizeof payload, &payload};
  Attributes attributes;
  attributes.payload_type = static_cast<int32_t>(0xDFBD0009);
  attributes.payload_count = 1;
  attributes.payload = &data;
  attributes.message = string(name);
  printf("%d", call<int>(core2[4], domain, static_cast<const Attributes*>(&attributes)));
  if (inner) range("ncclBroadcast", payload);
  printf("%d\n", call<int>(core2[5], domain));
}

struct Operation {
  uint64_t comm;
  uint64_t bytes;
  int first, second;
};
struct Init {
  uint64_t comm;
  int nranks, rank, device;
};
struct Split {
  uint64_t comm, parent;
  int nranks, rank, device, color, key;
};

int nvtx(const char* library) {
  void* tool = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!tool) return fprintf(stderr, "%s\n", dlerror()), 1;
  const auto initialize = reinterpret_cast<int (*)(const void* (*)(uint32_t))>(dlsym(tool, "InitializeInjectionNvtx2"));
  if (!initialize || initialize(export_table) != 1) return 2;
  domain = call<void*>(core2[12], "NCCL");
  void* mine = call<void*>(core2[12], "mine");
  range("ncclCommInitRank", Init{0xabc, 4, 2, 1});
  range("ncclAllReduce", Operation{0xabc, 4096, ncclMax, 0});
  range("ncclBcast", Operation{0xabc, 100, 3, 0}, true);
  range("ncclReduce", Operation{0xabc, 8, 1, ncclProd});
  range("ncclCommSplit", Split{0xdef, 0xabc, 2, 1, 1, 7, 0});
  range("ncclSend", Operation{0xdef, 10, 0, 0});
  range("ncclGroupStart", uint64_t{0});
  range("ncclAllGather", Operation{0xdef, 16, 0, 0});
  range("ncclGroupEnd", uint64_t{0});
  range("ncclNotAFunction", uint64_t{0});
  range("ncclCommDestroy", Init{0xdef, 2, 1, 1});
  // The program's own ranges.
  call<int>(core[9], "step 1");
  Attributes attributes;
  attributes.message_type = 1;
  attributes.message = "forward pass";
  call<int>(core2[4], mine, static_cast<const Attributes*>(&attributes));
  call<int>(core[9], "something else");
  range("ncclAllReduce", Operation{0xabc, 1, ncclSum, 0});
  for (int i = 0; i < 3; i++) printf("%d", call<int>(core[11]));
  printf(" %d\n", call<int>(core[11]));  // one too many
  return 0;
}

// --- the profiler interface ------------------------------------------------------------------------------------------------------

struct Event {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool captured;
    } coll;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool captured;
    } p2p;
    char room[128];
  };
};
struct Plugin {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, Event*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};

int profiler(const char* library, const char* symbol) {
  void* tool = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!tool) return fprintf(stderr, "%s\n", dlerror()), 1;
  const auto* plugin = static_cast<const Plugin*>(dlsym(tool, symbol));
  if (!plugin) return 2;
  void *context = nullptr, *handle = nullptr;
  int mask = 0;
  if (plugin->init(&context, 0xabc, &mask, "tp", 1, 4, 2, nullptr) != 0) return 3;
  printf("%s %x\n", plugin->name, static_cast<unsigned>(mask));
  Event event = {};
  event.type = 1 << 9;
  event.rank = 2;
  event.coll = {"AllReduce", 1000, "ncclFloat32", 0, reinterpret_cast<void*>(0x77), false};
  plugin->start(context, &handle, &event);
  void* inner = nullptr;
  Event launch = {};
  launch.type = 1 << 11;
  plugin->start(context, &inner, &launch);  // not asked for
  if (inner) return 4;
  plugin->stop(handle);
  event.coll = {"Broadcast", 5, "ncclInt8", 3, reinterpret_cast<void*>(0x78), true};
  plugin->start(context, &handle, &event);
  plugin->stop(handle);
  event.type = 1 << 10;
  event.p2p = {"Send", 6, "ncclBfloat16", nullptr, false};
  plugin->start(context, &handle, &event);
  plugin->state(handle, 1, nullptr);
  plugin->stop(handle);
  return plugin->finalize(context);
}

// --- a real libnccl --------------------------------------------------------------------------------------------------------------

int real(const char* path) {
  void* nccl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!nccl) return fprintf(stderr, "%s\n", dlerror()), 1;
  using AllReduce = int (*)(const void*, void*, size_t, int, int, void*, void*);
  using Group = int (*)();
  const auto all_reduce = reinterpret_cast<AllReduce>(dlsym(nccl, "ncclAllReduce"));
  const auto start = reinterpret_cast<Group>(dlsym(nccl, "ncclGroupStart")), end = reinterpret_cast<Group>(dlsym(nccl, "ncclGroupEnd"));
  if (!all_reduce || !start || !end) return 2;
  printf("%d\n", all_reduce(nullptr, nullptr, 12, 7, 2, nullptr, nullptr));
  printf("%d", start());
  printf("%d\n", end());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "nvtx") return nvtx(argv[2]);
  if (what == "profiler" && argc > 3) return profiler(argv[2], argv[3]);
  if (what == "real") return real(argv[2]);
  return 9;
}
