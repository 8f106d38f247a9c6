// SPDX-License-Identifier: MIT
//
// NCCL_COMM_ID=host:port: no unique id travels, every rank makes one by itself, and they meet at that name. The host
// runtime's ranks are on one host, so nothing is sent to that address; it is the name only.
//
// Rank 0 makes the communicator's memory, as the maker of a unique id does elsewhere, and binds an abstract socket to
// the name, for as long as ranks are missing. The others connect, learn from the kernel whose process that is, and find
// the memory among its descriptors. Nobody serves anybody, and nothing has a name in the file system.

#pragma once

#include <memory>

#include "interpose/abi/nccl.h"
#include "reference/nccl/control.h"

namespace lockstep::nccl {

// ncclInvalidArgument, told by warn(), if the text is no host:port.
ncclResult_t make_named_id(const char* text, ncclUniqueId* id);
bool is_named(const ncclUniqueId& id);

// One rank at the meeting; the end of it gives the name free.
class NamedMeeting {
 public:
  NamedMeeting(const ncclUniqueId& id, int rank);
  ~NamedMeeting();
  NamedMeeting(const NamedMeeting&) = delete;
  NamedMeeting& operator=(const NamedMeeting&) = delete;

  // ncclInProgress: rank 0 is not there yet.
  ncclResult_t open(std::shared_ptr<Control>& control);

 private:
  ncclResult_t make(std::shared_ptr<Control>& control);
  ncclResult_t find(std::shared_ptr<Control>& control);
  const ncclUniqueId id_;
  const int rank_;
  int listener_ = -1;
};

}  // namespace lockstep::nccl
