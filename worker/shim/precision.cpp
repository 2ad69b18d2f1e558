// libtorch's own switch for the precision of f32 products. Same contract as aten.cpp.

#include "aten_guard.h"

#include <ATen/Context.h>

extern "C" int32_t enn_allow_tf32(int32_t on) {
  return enn::guarded([&] { at::globalContext().setAllowTF32CuBLAS(on != 0); });
}
