// SPDX-License-Identifier: MIT
//
// What a stream can be told to do, as values: an operation is used up when it has run, a graph runs the same work any
// number of times, so both the asynchronous calls and the nodes of graphs are made from these.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "cuda_runtime_api.h"
#include "reference/cuda/op.h"
#include "reference/cuda/stream.h"

namespace lockstep::host {

// Enqueues an operation on `stream`, to start when everything in `after` is over; says where its end is. May be called
// any number of times, each call makes an operation of its own.
using Recipe = std::function<Point(const std::shared_ptr<Stream>& stream, std::vector<Point> after)>;

// A box of bytes: `height` rows of `width` bytes, `depth` slices of such rows.
struct Copy {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  size_t width = 0, height = 1, depth = 1;
  size_t dst_pitch = 0, src_pitch = 0;  // bytes from row to row
  size_t dst_slice = 0, src_slice = 0;  // bytes from slice to slice

  size_t bytes() const { return width * height * depth; }
};
Copy flat_copy(void* dst, const void* src, size_t bytes);
// An error if the parameters name arrays (there are none here) or do not fit together.
cudaError_t copy_of(const cudaMemcpy3DParms& params, Copy& copy);
cudaMemcpy3DParms params_of(const Copy& copy, cudaMemcpyKind kind);

// `height` rows of `width` elements of 1, 2 or 4 bytes, all of one value.
using Fill = cudaMemsetParams;
Fill flat_fill(void* at, int value, size_t bytes);
cudaError_t check(const Fill& fill);

std::unique_ptr<Op> make_copy(const Copy& copy);
std::unique_ptr<Op> make_copy(void* dst, std::vector<std::byte> taken);  // of bytes taken along, for pageable memory
std::unique_ptr<Op> make_fill(const Fill& fill);
// Nothing, in its place in the queue: what a stream does while it only waits.
std::unique_ptr<Op> make_marker();

void copy_now(const Copy& copy);
void fill_now(const Fill& fill);

}  // namespace lockstep::host
