// How many threads the next operation may take, of whoever calls, and loops on them.

#include "parallel.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace {

template <class F>
F* named(const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name)); }

// The OpenMP that libtorch brings, which the linker does not know; by the names that programs of GCC call, which others have, too.
struct OpenMp {
  int (*most)() = named<int()>("omp_get_max_threads");
  void (*set)(int) = named<void(int)>("omp_set_num_threads");
  int (*is_inside)() = named<int()>("omp_in_parallel");
  int (*index)() = named<int()>("omp_get_thread_num");
  int (*count)() = named<int()>("omp_get_num_threads");
  void (*run)(void (*)(void*), void*, unsigned, unsigned) = named<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel");

  bool is_there() const { return most && set && is_inside && index && count && run; }
};

const OpenMp& openmp() {
  static const OpenMp found;
  return found;
}

// Numbers that a register holds at most, of the narrowest kind.
constexpr int64_t TOGETHER = 64;

struct Loop {
  int64_t begin, end, grain;
  c10::function_ref<void(int64_t, int64_t)> part;
  std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;

  // What falls to the thread that asks.
  void run() {
    const int64_t numbers = end - begin, most = (numbers + grain - 1) / grain;
    const int64_t threads = std::min<int64_t>(openmp().count(), most), whole = std::min(grain, TOGETHER);
    const int64_t each = ((numbers + threads - 1) / threads + whole - 1) / whole * whole;
    const int64_t from = begin + openmp().index() * each;
    if (from >= end) return;
    try {
      part(from, std::min(end, from + each));
    } catch (...) {
      if (!has_failed.test_and_set()) error = std::current_exception();
    }
  }
};

} // namespace

void enn::parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  if (begin >= end) return;
  grain = std::max<int64_t>(1, grain);
  const OpenMp& threads = openmp();
  if (end - begin <= grain || !threads.is_there() || threads.is_inside() || threads.most() <= 1) return part(begin, end);
  Loop loop{begin, end, grain, part};
  threads.run([](void* loop) { static_cast<Loop*>(loop)->run(); }, &loop, 0, 0);
  if (loop.error) std::rethrow_exception(loop.error);
}

extern "C" {

// Sets the number for this thread and returns the one before; 0 where libtorch computes without OpenMP.
int32_t enn_threads(int32_t count) {
  if (!openmp().is_there()) return 0;
  const int before = openmp().most();
  if (before != count) openmp().set(count);
  return before;
}

// Threads that a loop is on.
int32_t enn_threads_at_work() {
  std::atomic<int32_t> parts = 0;
  enn::parallel_for(0, 1 << 20, 1, [&](int64_t, int64_t) { ++parts; });
  return parts;
}
}
