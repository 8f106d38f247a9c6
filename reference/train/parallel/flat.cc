// SPDX-License-Identifier: MIT

#include "reference/train/parallel/flat.h"

#include <algorithm>

#include "reference/train/kernels/kernels.h"

namespace train {

Flat::Flat(std::vector<Parameter*> all, int ranks_of_group) : parameters(std::move(all)), ranks(ranks_of_group) {
  for (const Parameter* p : parameters) {
    begins.push_back(size);
    size += p->count;
  }
  padded = (size + ranks - 1) / ranks * ranks;
}

std::vector<Flat::Piece> Flat::pieces(int rank) const {
  const int64_t low = rank * shard_size(), high = low + shard_size();
  std::vector<Piece> found;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = std::max(begins[i], low), end = std::min(begins[i] + parameters[i]->count, high);
    if (begin < end) found.push_back({parameters[i], begin - begins[i], end - begin, begin - low});
  }
  return found;
}

void Flat::bind_values(View whole) const {
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->value = whole.part(begins[i], parameters[i]->count);
}

void Flat::bind_gradients(View whole) const {
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->grad = whole.part(begins[i], parameters[i]->count);
    parameters[i]->grad_written = false;
  }
}

void Flat::zero_unwritten(const Stream& compute) const {
  for (const Parameter* p : parameters)
    if (!p->grad_written) fill(compute.get(), p->grad, 0);
}

ShardState make_state(const Setup& setup, View value) {
  ShardState state;
  const Dtype type = wide(setup.dtype);
  state.first = setup.memory.allocate(Purpose::optimizer, type, value.size);
  if (setup.second_moment) state.second = setup.memory.allocate(Purpose::optimizer, type, value.size);
  state.master = value;
  if (type != setup.dtype) {
    state.master = setup.memory.allocate(Purpose::optimizer, type, value.size);
    convert(setup.compute.get(), state.master, value);
  }
  return state;
}

void add_owned(std::vector<Owned>& owned, const Flat& flat, int rank, View value, View gradient,
               const ShardState& state) {
  const auto part = [](View view, const Flat::Piece& piece) {
    return view ? view.part(piece.at, piece.count) : View{nullptr, 0, view.dtype};
  };
  for (const Flat::Piece& piece : flat.pieces(rank))
    owned.push_back({piece.parameter, piece.begin, piece.count, part(value, piece), part(state.master, piece),
                     part(gradient, piece), part(state.first, piece), part(state.second, piece)});
}

}  // namespace train
