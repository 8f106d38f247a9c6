/* SPDX-License-Identifier: MIT
 *
 * Marks for a training loop, so that a verdict can say "step 812, phase backward, sample shard3:1187".
 *
 *   #include <lockstep.h>
 *   lockstep_step(step);              once at the head of each step
 *   lockstep_phase("backward");       whenever the phase changes
 *   lockstep_sample_id("shard3:17");  or lockstep_sample(17): what the step is about to train on
 *
 * Nothing to link: the shim is looked up once at run time, and when it is not in the process every mark is a test of one
 * pointer. Marks belong to the calling thread; calls made by threads that never mark take the process's latest marks.
 * Works in C and in C++; safe from any thread; texts are copied.
 */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The one entry point, exported by liblockstep.so and frozen: kind is one of the numbers below. A text may be NULL. */
__attribute__((weak)) void lockstep_mark_v1(int kind, uint64_t value, const char* text);

#define LOCKSTEP_MARK_STEP 1
#define LOCKSTEP_MARK_PHASE 2
#define LOCKSTEP_MARK_SAMPLE 3
#define LOCKSTEP_MARK_NOTE 4
#define LOCKSTEP_MARK_COMM_NAME 5 /* value: the ncclComm_t as a number; text: its name in verdicts */

/* What the host runtime (a fake GPU) did and when; frozen. It calls this function, if the process has one where dlsym
 * finds it, for each operation as it ends, on whichever thread drives the stream: do little there and call no CUDA or
 * NCCL function. `kind` is one of the numbers below, with LOCKSTEP_ACTIVITY_IN_GRAPH added for a node of a launched
 * graph; `stream` is the handle (1 for legacy default streams; per-thread default streams and the branches of graphs
 * have a number no handle has); t0 and t1 are CLOCK_MONOTONIC nanoseconds: when its turn came and when it was over, the
 * wait for other ranks included; `name` is an NCCL function without its prefix ("AllReduce"; for a group that of its
 * first call), else what the kind is, and is valid during the call only. */
__attribute__((weak)) void lockstep_activity_v1(int kind, const void* stream, int64_t t0, int64_t t1, const char* name);

#define LOCKSTEP_ACTIVITY_COPY 1
#define LOCKSTEP_ACTIVITY_MEMSET 2
#define LOCKSTEP_ACTIVITY_HOST_FUNCTION 3
#define LOCKSTEP_ACTIVITY_NCCL 4
#define LOCKSTEP_ACTIVITY_IN_GRAPH 0x100

static inline void lockstep_mark(int kind, uint64_t value, const char* text) {
  if (lockstep_mark_v1) lockstep_mark_v1(kind, value, text);
}
static inline void lockstep_step(uint64_t step) { lockstep_mark(LOCKSTEP_MARK_STEP, step, 0); }
static inline void lockstep_phase(const char* name) { lockstep_mark(LOCKSTEP_MARK_PHASE, 0, name); }
static inline void lockstep_sample(uint64_t id) { lockstep_mark(LOCKSTEP_MARK_SAMPLE, id, 0); }
static inline void lockstep_sample_id(const char* id) { lockstep_mark(LOCKSTEP_MARK_SAMPLE, 0, id); }
static inline void lockstep_note(const char* text) { lockstep_mark(LOCKSTEP_MARK_NOTE, 0, text); }
static inline void lockstep_comm_name(void* comm, const char* name) {
  lockstep_mark(LOCKSTEP_MARK_COMM_NAME, (uint64_t)(uintptr_t)comm, name);
}

#ifdef __cplusplus
}
#endif

#endif
