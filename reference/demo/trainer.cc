// SPDX-License-Identifier: MIT
//
// The training loop. The mistake it demonstrates is in run_epoch and looks innocent: the loop runs while *this rank*
// has a batch, so a rank whose shard is one batch short leaves it one step before the others, which then wait in the
// all-reduces of a step it never makes.

#include "reference/demo/trainer.h"

#include <lockstep.h>

#include <cstdio>
#include <cstring>

#include "reference/demo/check.h"
#include "reference/demo/data_loader.h"
#include "reference/demo/model.h"

namespace demo {
namespace {

// A parameter's gradient on its way between the ranks: page-locked host memory, so that copies are asynchronous, and
// its twin on the device.
struct Buffer {
  void* host = nullptr;
  void* device = nullptr;
  size_t bytes = 0;
};
Buffer make_buffer(size_t bytes) {
  Buffer b;
  b.bytes = bytes;
  CHECK(cudaMallocHost(&b.host, bytes));
  CHECK(cudaMalloc(&b.device, bytes));
  return b;
}
void free_buffer(const Buffer& b) {
  CHECK(cudaFreeHost(b.host));
  CHECK(cudaFree(b.device));
}

struct Ranks {
  int rank = 0;
  int size = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

Ranks join(const Options& options, const RankPlace& place) {
  Ranks ranks{place.rank, options.ranks};
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  CHECK(cudaSetDevice(place.rank % devices));
  CHECK(cudaStreamCreate(&ranks.stream));

  ncclUniqueId id;
  IdBytes bytes;
  static_assert(sizeof id == sizeof bytes);
  if (place.rank == 0) {
    CHECK(ncclGetUniqueId(&id));
    std::memcpy(bytes.data(), &id, sizeof id);
    place.link.publish_id(bytes);
  } else {
    bytes = place.link.receive_id();
    std::memcpy(&id, bytes.data(), sizeof id);
  }
  CHECK(ncclCommInitRank(&ranks.comm, ranks.size, id, ranks.rank));
  return ranks;
}

// Adds a buffer up over all ranks, in stream order: to the device, all-reduce, and back.
void all_reduce(const Ranks& ranks, const Buffer& b, size_t count, ncclDataType_t type) {
  CHECK(cudaMemcpyAsync(b.device, b.host, b.bytes, cudaMemcpyHostToDevice, ranks.stream));
  CHECK(ncclAllReduce(b.device, b.device, count, type, ncclSum, ranks.comm, ranks.stream));
  CHECK(cudaMemcpyAsync(b.host, b.device, b.bytes, cudaMemcpyDeviceToHost, ranks.stream));
}

// Everybody starts from rank 0's parameters.
void broadcast_parameters(const Ranks& ranks, Model& model, const std::vector<Buffer>& buffers) {
  const auto parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<float>& value = parameters[i]->value;
    const Buffer& b = buffers[i];
    std::memcpy(b.host, value.data(), b.bytes);
    CHECK(cudaMemcpyAsync(b.device, b.host, b.bytes, cudaMemcpyHostToDevice, ranks.stream));
    CHECK(ncclBroadcast(b.device, b.device, value.size(), ncclFloat, 0, ranks.comm, ranks.stream));
    CHECK(cudaMemcpyAsync(b.host, b.device, b.bytes, cudaMemcpyDeviceToHost, ranks.stream));
    CHECK(cudaStreamSynchronize(ranks.stream));
    std::memcpy(value.data(), b.host, b.bytes);
  }
}

// One step; returns the mean loss over the samples of all ranks.
double train_step(const Ranks& ranks, Model& model, const std::vector<Buffer>& buffers, const Batch& batch, int step) {
  const auto parameters = model.parameters();
  Activations activations;

  lockstep_phase("forward");
  double totals[2] = {forward(model, batch, activations), static_cast<double>(batch.target.size())};

  lockstep_phase("backward");
  backward(model, batch, activations, [&](int i) {
    const std::vector<float>& grad = parameters[static_cast<size_t>(i)]->grad;
    const Buffer& b = buffers[static_cast<size_t>(i)];
    std::memcpy(b.host, grad.data(), b.bytes);
    all_reduce(ranks, b, grad.size(), ncclFloat);
  });
  const Buffer& loss = buffers.back();
  std::memcpy(loss.host, totals, sizeof totals);
  all_reduce(ranks, loss, 2, ncclDouble);

  lockstep_phase("optimizer");
  CHECK(cudaStreamSynchronize(ranks.stream));
  for (size_t i = 0; i < parameters.size(); ++i)
    std::memcpy(parameters[i]->grad.data(), buffers[i].host, buffers[i].bytes);
  std::memcpy(totals, loss.host, sizeof totals);
  adam(model, step, 0.01F, static_cast<float>(1 / totals[1]));
  return totals[0] / totals[1];
}

// Returns the last step's loss.
double run_epoch(const Ranks& ranks, Model& model, const std::vector<Buffer>& buffers, DataLoader& loader) {
  Batch batch;
  double loss = 0;
  for (int step = 1; next_batch(loader, batch); ++step) {
    lockstep_step(static_cast<uint64_t>(step));
    lockstep_sample_id(batch.id.c_str());
    loss = train_step(ranks, model, buffers, batch, step);
    if (ranks.rank == 0 && (step == 1 || step % 20 == 0)) {
      std::printf("step %4d  loss %.3f\n", step, loss);
      std::fflush(stdout);
    }
  }
  return loss;
}

}  // namespace

int train(const Options& options, const RankPlace& place) {
  const std::string text = read_text(options.text_path);
  const Vocabulary vocabulary = make_vocabulary(text);
  DataLoader loader = open_shard(text, vocabulary, options, place.rank);
  Model model = make_model(vocabulary.size, static_cast<unsigned>(place.rank));

  const Ranks ranks = join(options, place);
  std::vector<Buffer> buffers;
  for (const Parameter* p : model.parameters()) buffers.push_back(make_buffer(p->value.size() * sizeof(float)));
  buffers.push_back(make_buffer(2 * sizeof(double)));  // summed loss, samples

  broadcast_parameters(ranks, model, buffers);
  const double loss = run_epoch(ranks, model, buffers, loader);

  const bool ran_dry = place.rank == options.short_rank && !options.drop_last;
  if (ran_dry && options.exit_early) return 0;
  wait_for_epoch_end(loader, place.link);

  if (place.rank == 0) std::printf("epoch over after %d steps, loss %.3f\n", loader.next, loss);
  for (const Buffer& b : buffers) free_buffer(b);
  CHECK(ncclCommDestroy(ranks.comm));
  CHECK(cudaStreamDestroy(ranks.stream));
  return 0;
}

}  // namespace demo
