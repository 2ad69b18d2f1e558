// How many threads the next operation may take, of whoever calls.

#include <dlfcn.h>

#include <cstdint>

extern "C" {

// Sets the number for this thread and returns the one before; 0 where libtorch computes without OpenMP.
int32_t enn_threads(int32_t count) {
  // Of the OpenMP that libtorch brings, which the linker does not know.
  static const auto most = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  static const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (!most || !set) return 0;
  const int before = most();
  if (before != count) set(count);
  return before;
}
}
