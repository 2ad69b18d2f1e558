// What own CUDA code needs from libtorch's runtime. Same contract as aten.cpp; a build without CUDA answers with an error.

#include "aten_guard.h"

#include <cstdint>

#ifdef ENN_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

extern "C" {

// The stream libtorch launches on now, on this thread and device.
int32_t enn_cuda_current_stream(int32_t device, void** out) {
  return enn::guarded([&] {
#ifdef ENN_CUDA
    *out = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
#else
    (void)device;
    *out = nullptr;
    TORCH_CHECK(false, "this worker was built without CUDA");
#endif
  });
}
}
