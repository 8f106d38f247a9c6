// SPDX-License-Identifier: MIT
//
// The trace file, byte for byte. See docs/trace-format.md for the same in prose with a worked example.
//
// One file a process, mapped MAP_SHARED by the process that writes it, so whatever was stored before a SIGKILL is in the
// page cache and stays. Nothing is ever flushed, moved or rewritten by a call; a reader may map the file at any instant.
//
//   +----------------+ 0
//   | FileHeader     |  who the process is; written once, before the file gets its final name
//   +----------------+ header.areas[kStatusArea].offset
//   | Status         |  heartbeat, clocks, exit record, counters; rewritten in place
//   +----------------+ areas[kThreadArea]
//   | ThreadSlot []  |  per thread: what it is in now, its last step / phase / sample
//   +----------------+ areas[kCommArea]
//   | CommSlot []    |  per communicator: members as known, last calls; survives a wrapped ring
//   +----------------+ areas[kArenaArea]
//   | arena          |  append-only records of any length: stacks, modules, texts, snapshots, symbols
//   +----------------+ areas[kRingArea]
//   | Record [] ...  |  128-byte events; grows a segment at a time up to areas[kRingArea].size, then wraps
//   +----------------+
//
// Who may write what: every field has one writing party, named beside it. "process" = threads of the traced process
// through the shim; "helper" = the shim's helper thread; "supervisor" = `lockstep run`, from outside. Counters marked
// "any" are reserved by atomic addition, from inside or outside.
//
// Torn writes. A Record is complete when `commit` holds its sequence number plus one, stored last with release order,
// and `check` fits; anything else is a torn or overwritten record and is skipped and counted. While it is being written
// `commit` also has kBusy. A thread takes kBlockSlots neighbouring numbers at a time and is the only one to write in
// their slots; a block still held by somebody who slept through a whole lap is left alone, so that a thread that was not
// running never spoils another's record. Numbers given up so are counted in ring_skipped. An arena record is complete
// when `state` is kArenaCommitted. Blocks that are rewritten in place carry a Seqlock word: odd while being written.
// A reader copies, then compares the word before and after.
//
// The end of a call is stored into its begin record: result first, then the stamp, two whole words that `check` does not
// cover. Only while the thread still owns the block; else (it made other records in between) as a record of its own.
//
// Versions. `version_major` changes when an old reader would misread a new file: it must refuse. `version_minor` changes
// when fields were added in reserved space, areas, arena kinds or record kinds: an old reader skips what it does not know.
// A field is never moved or given another meaning; a field no longer used stays and is said to be retired.

#pragma once

#include "interpose/trace/format_process.h"
#include "interpose/trace/format_records.h"
#include "interpose/trace/format_slots.h"
