// How many threads the next operation may take, of whoever calls.

#include "parallel.h"

#include <ATen/Parallel.h>

#include <dlfcn.h>

#include <cstdint>

namespace {

// What libtorch had before it was given one, 0 where it has as many.
thread_local int32_t whole = 0;

} // namespace

int32_t enn::threads_of_loops() { return whole > 0 ? whole : at::get_num_threads(); }

extern "C" {

// Sets libtorch's number for this thread and returns the one before; 0 where it computes without OpenMP. Our own loops, which give the
// same bits on any number and wake nobody for little, keep theirs when it is given one.
int32_t enn_threads(int32_t count) {
  // Of the OpenMP that libtorch brings, which the linker does not know.
  static const auto most = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  static const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (!most || !set) return 0;
  const int before = most();
  if (before == count) return before;
  whole = count == 1 ? before : 0;
  set(count);
  return before;
}
}
