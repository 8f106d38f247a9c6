// SPDX-License-Identifier: MIT
//
// One pool for the process, shared by all its ranks. A kernel posts its job where idle workers find it and then works
// on it itself, so nobody waits for a worker that is busy with another rank's kernel. Workers look for work briefly
// before they sleep: the kernels of a training step follow each other within microseconds.

#include "reference/train/kernels/threads.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "reference/train/kernels/kernels.h"
#include "reference/train/kernels/launch.h"

namespace train {

namespace {

struct Job {
  void (*body)(void*, int64_t);
  void* data;
  int64_t blocks;
  std::atomic<int64_t> next{0};
  int helpers = 0, allowed = 0;  // guarded by the pool's mutex
};

void work_on(Job& job) {
  for (int64_t block; (block = job.next.fetch_add(1, std::memory_order_relaxed)) < job.blocks;)
    job.body(job.data, block);
}

class Pool {
 public:
  void set_threads(int threads) {
    const std::lock_guard lock(mutex_);
    threads_ = threads < 1 ? 1 : threads;
    for (; workers_ < threads_ - 1; ++workers_) std::thread([this] { serve(); }).detach();
    alone_ = threads_ == 1;
  }

  bool alone() const { return alone_.load(std::memory_order_relaxed); }

  void run(Job& job) {
    int wanted = 0;
    {
      const std::lock_guard lock(mutex_);
      job.allowed = wanted = static_cast<int>(job.blocks - 1 < threads_ - 1 ? job.blocks - 1 : threads_ - 1);
      jobs_.push_back(&job);
      posted_.fetch_add(1, std::memory_order_relaxed);
    }
    for (int i = 0; i < wanted; ++i) wake_.notify_one();
    work_on(job);
    std::unique_lock lock(mutex_);
    std::erase(jobs_, &job);  // all blocks are taken: nobody need come
    left_.wait(lock, [&] { return job.helpers == 0; });
  }

 private:
  Job* find() {
    for (Job* job : jobs_)
      if (job->allowed > 0 && job->next.load(std::memory_order_relaxed) < job->blocks) return job;
    return nullptr;
  }

  // Waits a little where work may come at once; a sleeping thread takes ten times longer to begin.
  void linger() const {
    const uint64_t seen = posted_.load(std::memory_order_relaxed);
    for (int i = 0; i < kYields && posted_.load(std::memory_order_relaxed) == seen; ++i) sched_yield();
  }

  [[noreturn]] void serve() {
    for (;;) {
      linger();
      std::unique_lock lock(mutex_);
      Job* job = nullptr;
      wake_.wait(lock, [&] { return (job = find()) != nullptr; });
      --job->allowed;
      ++job->helpers;
      lock.unlock();
      work_on(*job);
      lock.lock();
      if (--job->helpers == 0) left_.notify_all();
    }
  }

  static constexpr int kYields = 50;
  std::mutex mutex_;
  std::condition_variable wake_, left_;
  std::vector<Job*> jobs_;
  int threads_ = 1, workers_ = 0;
  std::atomic<bool> alone_{true};
  std::atomic<uint64_t> posted_{0};
};

// Never destroyed: its threads end with the process.
Pool& pool() {
  static Pool& made = *new Pool;
  return made;
}

}  // namespace

void set_threads(int threads) { pool().set_threads(threads); }

void run_blocks(int64_t blocks, void (*body)(void*, int64_t), void* data) {
  if (blocks <= 1 || pool().alone()) {
    for (int64_t block = 0; block < blocks; ++block) body(data, block);
    return;
  }
  Job job{body, data, blocks};
  pool().run(job);
}

void* scratch() {
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  thread_local const std::unique_ptr<void, Free> mine(::operator new (kScratch, std::align_val_t{64}));
  return mine.get();
}

void misuse(const char* kernel, const char* expected) {
  std::fprintf(stderr, "lockstep-train: %s: expected %s\n", kernel, expected);
  std::abort();
}

}  // namespace train
