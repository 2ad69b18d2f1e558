// C face of page-locking: memory of the host that CUDA devices read and write by themselves.
//
// Contract as in aten.cpp: 0, or 1 and then enn_aten_error() says why. Without ENN_CUDA every call refuses.

#include "aten_guard.h"

#include <cstddef>
#include <cstdint>

#ifdef ENN_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#endif

extern "C" {

#ifdef ENN_CUDA

// The device is that of the caller: whatever thread asks, no other device gets a context for it.
int32_t enn_host_lock(int32_t device, void* at, size_t bytes) {
  return enn::guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    C10_CUDA_CHECK(cudaHostRegister(at, bytes, cudaHostRegisterPortable));
  });
}

int32_t enn_host_unlock(int32_t device, void* at) {
  return enn::guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    C10_CUDA_CHECK(cudaHostUnregister(at));
  });
}

#else

static int32_t no_cuda_host() {
  enn::last_error() = "this enn-worker was built without CUDA";
  return 1;
}
int32_t enn_host_lock(int32_t, void*, size_t) { return no_cuda_host(); }
int32_t enn_host_unlock(int32_t, void*) { return no_cuda_host(); }

#endif
}
