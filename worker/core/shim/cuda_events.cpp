// C face of CUDA events with times, on the current stream of the current device.
//
// Contract as in aten.cpp: 0, or 1 and then enn_aten_error() says why. Without ENN_CUDA every call refuses.

#include "aten_guard.h"

#include <cstdint>
#include <memory>

#ifdef ENN_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>
#endif

extern "C" {

#ifdef ENN_CUDA

int32_t enn_event_new(void** out) {
  return enn::guarded([&] { *out = new at::cuda::CUDAEvent(cudaEventDefault); });
}

void enn_event_free(void* event) {
  delete static_cast<at::cuda::CUDAEvent*>(event);
}

int32_t enn_event_record(void* event) {
  return enn::guarded([&] { static_cast<at::cuda::CUDAEvent*>(event)->record(c10::cuda::getCurrentCUDAStream()); });
}

// Waits for both events. Milliseconds from `from` to `to`.
int32_t enn_event_elapsed(void* from, void* to, float* out) {
  return enn::guarded([&] {
    auto& first = *static_cast<at::cuda::CUDAEvent*>(from);
    auto& second = *static_cast<at::cuda::CUDAEvent*>(to);
    first.synchronize();
    second.synchronize();
    *out = first.elapsed_time(second);
  });
}

#else

static int32_t no_cuda_events() {
  enn::last_error() = "this enn-worker was built without CUDA";
  return 1;
}
int32_t enn_event_new(void**) { return no_cuda_events(); }
void enn_event_free(void*) {}
int32_t enn_event_record(void*) { return no_cuda_events(); }
int32_t enn_event_elapsed(void*, void*, float*) { return no_cuda_events(); }

#endif
}
