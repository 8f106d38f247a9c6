// SPDX-License-Identifier: MIT
//
// Where ranks that are processes meet: rank 0 writes NCCL's unique id to a file (under another name, then renamed), and
// the others wait for it. Rank 0 removes it at the end; a job that was killed leaves it behind, and who took the old id
// from it would wait for ranks that are gone. So the file also says who wrote it:
//
//   lockstep-train id 1          what it is
//   boot=ID pid-space=ID         which machine and which numbering of processes
//   pid=N started=N              rank 0's process, and when it began (in the machine's clock ticks)
//   written=N                    seconds since 1970
//   (an empty line, then the id's bytes)
//
// Where rank 0 would be visible and is not, the file is stale. From another machine one can only tell by its age: it is
// stale when it was written two minutes before the reader began. Nobody takes a stale file for the present one; rank 0
// replaces it.

#pragma once

#include <nccl.h>

#include <string>

namespace train {

// As rank 0. Throws Refusal, also where the path is some other file, or the meeting place of a run that goes on.
void write_id(const std::string& path, const ncclUniqueId& id);

// As any other rank: waits for a file that is not stale. Throws Refusal when none has come after `patience` seconds.
ncclUniqueId read_id(const std::string& path, double patience = 120);

}  // namespace train
