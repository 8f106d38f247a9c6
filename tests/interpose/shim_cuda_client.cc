// SPDX-License-Identifier: MIT
//
// A program that uses NCCL with CUDA streams, in the way its first argument names, for tests of host waits and of the states
// of operations. Prints what it saw, so that a run with the shim can be compared with one without it.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "interpose/abi/nccl.h"

extern "C" {
int cudaStreamSynchronize(void*);
int cudaStreamSynchronize_ptsz(void*);
int cudaEventSynchronize(void*);
int cudaDeviceSynchronize();
int cudaEventCreate(void**);
int cudaEventRecord(void*, void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaGraphLaunch(void*, void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cuStreamSynchronize(void*);
void fake_cuda_release(uint64_t);
uint64_t fake_cuda_tickets();
void fake_cuda_capture(int);
void fake_cuda_block_queries(int);
int fake_cuda_events_under_capture();
int fake_cuda_queries();
void fake_nccl_during_abort(void (*)());
}

namespace {

void* const stream = reinterpret_cast<void*>(0x77);
void* const other_stream = reinterpret_cast<void*>(0x78);
char buffer[64];

ncclComm_t init() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t comm = nullptr;
  ncclCommInitRank(&comm, 4, id, 1);
  return comm;
}

void all_reduce(ncclComm_t comm, size_t count = 8, void* on = stream) {
  ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, comm, static_cast<cudaStream_t>(on));
}

void say(const char* what, int result) {
  printf("%s %d %d\n", what, result, errno);
  errno = ENOTTY;
}

// Each host call once; the same again before there is a communicator, when nothing may be recorded.
void one_of_each() {
  void* event = nullptr;
  char to[8], from[8] = "copied";
  say("event", cudaEventCreate(&event));
  say("record", cudaEventRecord(event, stream));
  fake_cuda_release(UINT64_MAX);
  say("stream", cudaStreamSynchronize(stream));
  say("stream_ptsz", cudaStreamSynchronize_ptsz(other_stream));
  say("event", cudaEventSynchronize(event));
  say("device", cudaDeviceSynchronize());
  say("copy", cudaMemcpy(to, from, sizeof from, 1));
  say("bad copy", cudaMemcpy(to, from, sizeof from, 7));
  say("wait", cudaStreamWaitEvent(other_stream, event, 0));
  say("graph", cudaGraphLaunch(reinterpret_cast<void*>(0x99), stream));
  say("driver", cuStreamSynchronize(stream));
  printf("%s\n", to);
}

void wait_for_file(const char* path) {
  while (access(path, F_OK) != 0) usleep(2000);
}

// Three operations, of which the first is complete and the second has started; then all are; then a group of two.
void states(const char* first_gate, const char* second_gate) {
  ncclComm_t comm = init();
  fake_cuda_release(3);
  for (int i = 0; i < 3; i++) all_reduce(comm);
  fprintf(stderr, "three called\n");
  wait_for_file(first_gate);
  fake_cuda_release(UINT64_MAX);
  ncclGroupStart();
  all_reduce(comm);
  all_reduce(comm, 8, other_stream);
  ncclGroupEnd();
  printf("%llu events\n", static_cast<unsigned long long>(fake_cuda_tickets()));
  fprintf(stderr, "all called\n");
  wait_for_file(second_gate);
}

// One of two operations is complete when an abort cuts the other off, and takes its time.
void cut_off(const char* gate) {
  ncclComm_t comm = init();
  all_reduce(comm);
  fake_cuda_release(2);
  all_reduce(comm);
  fprintf(stderr, "called\n");
  wait_for_file(gate);
  fake_nccl_during_abort([] {
    fake_cuda_release(UINT64_MAX);
    usleep(300000);
  });
  ncclCommAbort(comm);
}

void capture() {
  ncclComm_t comm = init();
  all_reduce(comm);
  fake_cuda_capture(1);
  all_reduce(comm);
  ncclGroupStart();
  all_reduce(comm);
  ncclGroupEnd();
  fake_cuda_capture(0);
  for (int i = 0; i < 3; i++) cudaGraphLaunch(reinterpret_cast<void*>(0x99), stream);
  printf("%d under capture\n", fake_cuda_events_under_capture());
}

void digests() {
  ncclComm_t comm = init();
  char in[256], out[256];
  for (int i = 0; i < 256; i++) in[i] = static_cast<char>(i), out[i] = static_cast<char>(255 - i);
  const auto on = static_cast<cudaStream_t>(stream);
  ncclAllReduce(in, out, 10, ncclFloat32, ncclSum, comm, on);
  ncclAllGather(in, out, 10, ncclInt8, comm, on);
  ncclBroadcast(in, out, 20, ncclInt8, 2, comm, on);  // this is rank 1: its input does not count
  ncclGroupStart();
  ncclAllReduce(in, in, 3, ncclInt8, ncclSum, comm, on);
  ncclGroupEnd();
  ncclAllReduce(reinterpret_cast<void*>(0x1000), out, 1, ncclInt8, ncclSum, comm, on);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  errno = ENOTTY;
  if (what == "hosts") {
    one_of_each();
    ncclComm_t comm = init();
    all_reduce(comm);
    errno = ENOTTY;
    one_of_each();
  }
  if (what == "stuck") {  // an operation that never completes, and a host that waits for it
    ncclComm_t comm = init();
    for (int i = 0; i < 3; i++) all_reduce(comm);
    void* event = nullptr;
    cudaEventCreate(&event);
    cudaEventRecord(event, stream);
    fprintf(stderr, "ready\n");
    cudaEventSynchronize(event);
  }
  if (what == "stuck stream") {  // the same, waited for by its stream
    ncclComm_t comm = init();
    for (int i = 0; i < 3; i++) all_reduce(comm);
    void* event = nullptr;  // this CUDA waits for events alone
    cudaEventCreate(&event);
    cudaEventRecord(event, stream);
    cudaStreamSynchronize(stream);
  }
  if (what == "states") states(argv[2], argv[3]);
  if (what == "cut off") cut_off(argv[2]);
  if (what == "capture") capture();
  if (what == "digests") digests();
  if (what == "silent driver") {  // and then a call that hangs
    ncclComm_t comm = init();
    fake_cuda_block_queries(1);
    all_reduce(comm);
    fprintf(stderr, "ready\n");
    all_reduce(comm, 1200);
  }
  if (what == "fast") {  // far more operations than there are probes, all complete at once but the last, which never starts
    ncclComm_t comm = init();
    fake_cuda_release(2 * 1001);
    for (int i = 0; i < 1002; i++) all_reduce(comm);
    fprintf(stderr, "all called\n");
    pause();
  }
  if (what == "many") {  // more operations than there are probes, none of which ever starts
    ncclComm_t comm = init();
    for (int i = 0; i < 1000; i++) all_reduce(comm);
    ncclCommAbort(comm);
    printf("%d queries\n", fake_cuda_queries());
  }
  return 0;
}
