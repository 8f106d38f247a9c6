// SPDX-License-Identifier: MIT
//
// What a host wait proves to have completed, and what it does not: each by a file of a few records.

#include "tools/job/proven.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string_view>

#include "interpose/abi/functions.h"
#include "interpose/abi/host_functions.h"

namespace lockstep::test {
namespace {

using trace::Call;
using trace::CommInfo;
using trace::HostCall;

constexpr uint64_t kStream = 0x500, kOther = 0x600, kEvent = 0x70, kDefault = 0, kPerThread = 2;

uint16_t host_function(std::string_view name) {
  for (const abi::HostFunction& f : abi::kHostFunctions)
    if (name == f.name) return static_cast<uint16_t>(f.id);
  ADD_FAILURE() << "no host function " << name;
  return 0;
}

// One rank, one communicator; records in the order they are added.
class File {
 public:
  File() { add_comm(-1); }

  uint32_t add_comm(int device) {
    CommInfo comm;
    comm.serial = static_cast<uint32_t>(file_.comms.size() + 1);
    comm.device = device;
    comm.coll_started = comm.coll_completed = 0;
    file_.comms.push_back(comm);
    return comm.serial;
  }
  CommInfo& comm(uint32_t serial = 1) { return file_.comms[serial - 1]; }

  Call& call(uint64_t stream = kStream, uint32_t comm_serial = 1, uint32_t tid = 1) {
    Call made;
    made.event = next_++;
    made.fn = static_cast<uint16_t>(abi::Fn::AllReduce);
    made.tid = tid;
    made.comm = comm_serial;
    made.count = 8;
    made.stream = stream;
    made.seq = seen_[comm_serial]++;
    made.returned = true;
    file_.calls.push_back(made);
    return file_.calls.back();
  }
  HostCall& host(std::string_view name, uint64_t object = 0, uint64_t other = 0, uint32_t tid = 1) {
    HostCall made;
    made.event = next_++;
    made.fn = host_function(name);
    made.tid = tid;
    made.object = object;
    made.other = other;
    made.returned = true;
    file_.host_calls.push_back(made);
    return file_.host_calls.back();
  }
  // How many of the communicator's operations have completed, as is known then.
  std::optional<uint64_t> completed(uint32_t serial = 1) {
    trace::TraceFile counted = file_;
    count_proven_completions(counted);
    EXPECT_EQ(counted.comms[serial - 1].coll_started.has_value(), file_.comms[serial - 1].coll_started.has_value());
    EXPECT_GE(counted.comms[serial - 1].coll_started, counted.comms[serial - 1].coll_completed);
    return counted.comms[serial - 1].coll_completed;
  }

 private:
  trace::TraceFile file_;
  uint64_t next_ = 0;
  std::map<uint32_t, uint64_t> seen_;
};

// --- proven

TEST(Proven, AWaitForTheStreamProvesWhatWasOnItBefore) {
  for (const char* wait : {"cudaStreamSynchronize", "cuStreamSynchronize"}) {
    File file;
    file.call(), file.call();
    EXPECT_EQ(file.completed(), 0u);
    file.host(wait, kStream);
    EXPECT_EQ(file.completed(), 2u);
    file.call();
    EXPECT_EQ(file.completed(), 2u) << "made after the wait";
  }
}

TEST(Proven, AWaitForTheDeviceProvesAllStreams) {
  for (const char* wait : {"cudaDeviceSynchronize", "cuCtxSynchronize"}) {
    File file;
    file.call(kStream), file.call(kOther);
    file.host(wait);
    file.call(kStream);
    EXPECT_EQ(file.completed(), 2u);
  }
}

TEST(Proven, AWaitForAnEventProvesWhatWasThereWhenItWasRecorded) {
  for (const char* record : {"cudaEventRecord", "cudaEventRecordWithFlags", "cuEventRecord"}) {
    File file;
    file.call();
    file.host(record, kEvent, kStream);
    file.call();
    EXPECT_EQ(file.completed(), 0u) << "nobody has waited";
    file.host("cudaEventSynchronize", kEvent);
    EXPECT_EQ(file.completed(), 1u);
  }
}

TEST(Proven, AnEventCountsWhereItWasRecordedLast) {
  File file;
  file.call(), file.host("cudaEventRecord", kEvent, kStream);
  file.call(), file.host("cudaEventRecord", kEvent, kStream);
  file.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(file.completed(), 2u);

  File elsewhere;
  elsewhere.call(), elsewhere.host("cudaEventRecord", kEvent, kStream);
  elsewhere.host("cudaEventRecord", kEvent, kOther);
  elsewhere.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(elsewhere.completed(), 0u);
}

TEST(Proven, ANewerCountIsNeverLowered) {
  File file;
  file.comm().coll_started = file.comm().coll_completed = 5;
  file.call(), file.host("cudaStreamSynchronize", kStream);
  EXPECT_EQ(file.completed(), 5u);
}

// --- not proven

TEST(NotProven, ByAWaitForAnotherStream) {
  File file;
  file.call(), file.host("cudaStreamSynchronize", kOther);
  EXPECT_EQ(file.completed(), 0u);
}

TEST(NotProven, ByAWaitThatHasNotComeBackOrFailed) {
  File open;
  open.call(), open.host("cudaStreamSynchronize", kStream).returned = false;
  EXPECT_EQ(open.completed(), 0u);

  File failed;
  failed.call(), failed.host("cudaStreamSynchronize", kStream).result = 719;
  EXPECT_EQ(failed.completed(), 0u);
}

TEST(NotProven, ByAnEventNobodyRecordedOrWhoseRecordFailed) {
  File file;
  file.call(), file.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(file.completed(), 0u);

  File failed;
  failed.call(), failed.host("cudaEventRecord", kEvent, kStream).result = 1;
  failed.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(failed.completed(), 0u);
}

TEST(NotProven, ByWhatOnlyOrdersLaunchesOrCopies) {
  File file;
  file.call();
  file.host("cudaStreamWaitEvent", kStream, kEvent);
  file.host("cudaGraphLaunch", kEvent, kStream);
  file.host("cudaMemcpy");
  EXPECT_EQ(file.completed(), 0u);
}

TEST(NotProven, CallsThatWereNotLaunchedByThemselves) {
  for (const uint16_t flag : {trace::kCaptured, trace::kInGroup, trace::kGivenBack}) {
    File file;
    file.call().flags = flag;
    file.host("cudaStreamSynchronize", kStream);
    EXPECT_EQ(file.completed(), 0u) << "flag " << flag;
  }
}

TEST(NotProven, CallsThatFailedOrHaveNotComeBack) {
  File failed;
  failed.call().result = 5;
  failed.host("cudaStreamSynchronize", kStream);
  EXPECT_EQ(failed.completed(), 0u);

  File open;
  open.call().returned = false;
  open.host("cudaStreamSynchronize", kStream);
  EXPECT_EQ(open.completed(), 0u);
}

TEST(NotProven, CallsThatTakeNoNumberOrAreNoCollectives) {
  File zero;
  zero.call().count = 0;
  File none;
  none.call().seq = UINT64_MAX;
  File message;
  message.call().fn = static_cast<uint16_t>(abi::Fn::Send);
  for (File* file : {&zero, &none, &message}) {
    file->host("cudaStreamSynchronize", kStream);
    EXPECT_EQ(file->completed(), 0u);
  }
}

TEST(NotProven, WhereCountsAreNotKnownOrSeeOnlyAPart) {
  File unknown;
  unknown.comm().coll_started.reset(), unknown.comm().coll_completed.reset();
  unknown.call(), unknown.host("cudaStreamSynchronize", kStream);
  EXPECT_EQ(unknown.completed(), std::nullopt);

  File blind;
  blind.comm().blind = 1;
  blind.call(), blind.host("cudaStreamSynchronize", kStream);
  EXPECT_EQ(blind.completed(), 0u);
}

// The default stream may be each thread's own, and has one handle.
TEST(NotProven, OnTheDefaultStreamOfAnotherThread) {
  for (const uint64_t stream : {kDefault, kPerThread}) {
    File other;
    other.call(stream, 1, 1), other.host("cudaStreamSynchronize", stream, 0, 2);
    EXPECT_EQ(other.completed(), 0u);
    File own;
    own.call(stream, 1, 1), own.host("cudaStreamSynchronize", stream, 0, 1);
    EXPECT_EQ(own.completed(), 1u);
  }
}

// An event that is recorded into a graph happens when the graph is launched, perhaps on another stream.
TEST(NotProven, ByAnEventOfACapture) {
  for (const bool captured : {false, true}) {
    File file;
    file.call();
    file.call().flags = captured ? trace::kCaptured : 0;
    file.host("cudaEventRecord", kEvent, kStream), file.host("cudaEventSynchronize", kEvent);
    EXPECT_EQ(file.completed(), captured ? 0u : 2u);
  }
  // What was recorded before is no longer what the event stands for; behind the capture it is one of the stream again.
  File again;
  again.call(), again.host("cudaEventRecord", kEvent, kStream);
  again.call().flags = trace::kCaptured, again.host("cudaEventRecord", kEvent, kStream);
  again.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(again.completed(), 0u);
  again.call(), again.host("cudaEventRecord", kEvent, kStream), again.host("cudaEventSynchronize", kEvent);
  EXPECT_EQ(again.completed(), 3u);
}

// Ranks that are threads have a device each; a wait for the device is for the one that is current in its thread.
TEST(NotProven, OnAnotherDevice) {
  File file;
  file.comm().device = 0;
  const uint32_t second = file.add_comm(1);
  file.call(kStream, 1, 1), file.call(kOther, second, 2);
  file.host("cudaDeviceSynchronize", 0, 0, 2);
  EXPECT_EQ(file.completed(1), 0u);
  EXPECT_EQ(file.completed(second), 1u);

  // A third thread, or one that has called on both, may mean either.
  File unclear;
  unclear.comm().device = 0;
  unclear.add_comm(1);
  unclear.call(kStream, 1, 1), unclear.call(kOther, 2, 1);
  unclear.host("cudaDeviceSynchronize", 0, 0, 1);
  unclear.host("cudaDeviceSynchronize", 0, 0, 3);
  EXPECT_EQ(unclear.completed(1), 0u);
  EXPECT_EQ(unclear.completed(2), 0u);
}

}  // namespace
}  // namespace lockstep::test
