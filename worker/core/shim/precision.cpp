// libtorch's own switches: the precision of f32 products, and operators that give the same bits each time. Same contract as
// aten.cpp.

#include "aten_guard.h"

#include <ATen/Context.h>

extern "C" int32_t enn_allow_tf32(int32_t on) {
  return enn::guarded([&] { at::globalContext().setAllowTF32CuBLAS(on != 0); });
}

// An operator without a deterministic form is an error.
extern "C" int32_t enn_deterministic(int32_t on) {
  return enn::guarded([&] {
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(on != 0, /*warn_only=*/false);
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(on != 0);
    if (on != 0) {
      context.setBenchmarkCuDNN(false);
    }
  });
}
