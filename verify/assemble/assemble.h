// SPDX-License-Identifier: MIT
//
// From shards to the global tensor, with proof that they are one: every element is on some rank, owned by one at most,
// and equal, bit for bit, wherever there are copies. What breaks this is a fault of the training (or of the dump), and
// is worth more than any comparison: it needs no second run.

#pragma once

#include <string>
#include <vector>

#include "verify/assemble/tensor.h"

namespace lockstep::verify {

struct Fault {
  enum class Kind {
    gap,              // elements that no rank has
    overlap,          // elements that two ranks own
    replicas_differ,  // copies that are not the same
    shape,            // ranks that do not agree on the global shape, the dtype, or whether it is partial
    not_summed,       // summands, and nobody said that they are to be summed
  } kind;
  std::vector<int> ranks;  // the odd ones, where they can be told; else all that are concerned
  int64_t element = -1;    // the first that is concerned, in the flattened tensor
  int64_t count = 0;       // of elements that are concerned
  std::string sentence;    // without the tensor's name
};

const char* name_of(Fault::Kind kind);  // "gap", "replicas-differ", ...

struct Assembled {
  GlobalTensor tensor;
  std::vector<Fault> faults;
  // Values can be compared in spite of faults, but not of these.
  bool usable() const;
};

struct AssemblyOptions {
  bool sum_partials = false;
};

Assembled assemble(const std::string& name, const std::vector<dump::Shard>& shards,
                   const AssemblyOptions& options = {});

std::string ranks_text(std::vector<int> ranks);  // "rank 2", "ranks 0-3,5"

}  // namespace lockstep::verify
