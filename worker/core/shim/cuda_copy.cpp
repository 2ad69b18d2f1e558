// C face of copies that a CUDA device makes beside its computation: out of its memory to page-locked memory of the host, on a stream of
// their own.
//
// Contract as in aten.cpp: 0, or 1 and then enn_aten_error() says why. Without ENN_CUDA every call refuses.

#include "aten_guard.h"

#include <cstddef>
#include <cstdint>
#include <memory>

#ifdef ENN_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

extern "C" {

#ifdef ENN_CUDA

namespace {

// A stream of libtorch's pool may be that of the step, or of whoever else asked for one.
struct Copier {
  c10::DeviceIndex device;
  cudaStream_t stream = nullptr;
  at::cuda::CUDAEvent done{cudaEventDisableTiming};

  c10::cuda::CUDAStream beside() const { return c10::cuda::getStreamFromExternal(stream, device); }

  ~Copier() {
    // At the end of the process CUDA may be gone, and the stream with it.
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
};

}  // namespace

int32_t enn_copier_new(int32_t device, void** out) {
  return enn::guarded([&] {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
    auto copier = std::make_unique<Copier>();
    copier->device = static_cast<c10::DeviceIndex>(device);
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&copier->stream, cudaStreamNonBlocking));
    *out = copier.release();
  });
}

// The caller has waited.
void enn_copier_free(void* copier) {
  enn::guarded([&] { delete static_cast<Copier*>(copier); });
}

// What is copied from now on is what the current stream has made by now.
int32_t enn_copier_begin(void* opaque) {
  return enn::guarded([&] {
    auto& copier = *static_cast<Copier*>(opaque);
    c10::cuda::CUDAGuard guard(copier.device);
    at::cuda::CUDAEvent made{cudaEventDisableTiming};
    made.record(c10::cuda::getCurrentCUDAStream(copier.device));
    made.block(copier.beside());
  });
}

int32_t enn_copier_copy(void* opaque, const void* from, void* to, size_t bytes) {
  return enn::guarded([&] {
    auto& copier = *static_cast<Copier*>(opaque);
    c10::cuda::CUDAGuard guard(copier.device);
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, copier.stream));
  });
}

// All of it was asked for.
int32_t enn_copier_end(void* opaque) {
  return enn::guarded([&] {
    auto& copier = *static_cast<Copier*>(opaque);
    copier.done.record(copier.beside());
  });
}

// What is launched on the current stream from now on runs when all of it was copied. The host does not wait.
int32_t enn_copier_hold(void* opaque) {
  return enn::guarded([&] {
    auto& copier = *static_cast<Copier*>(opaque);
    copier.done.block(c10::cuda::getCurrentCUDAStream(copier.device));
  });
}

int32_t enn_copier_done(void* opaque, int32_t* out) {
  return enn::guarded([&] { *out = static_cast<Copier*>(opaque)->done.query() ? 1 : 0; });
}

// Waits for all that was asked for, also where asking failed in between.
int32_t enn_copier_wait(void* opaque) {
  return enn::guarded([&] { C10_CUDA_CHECK(cudaStreamSynchronize(static_cast<Copier*>(opaque)->stream)); });
}

#else

static int32_t no_cuda_copier() {
  enn::last_error() = "this enn-worker was built without CUDA";
  return 1;
}
int32_t enn_copier_new(int32_t, void**) { return no_cuda_copier(); }
void enn_copier_free(void*) {}
int32_t enn_copier_begin(void*) { return no_cuda_copier(); }
int32_t enn_copier_copy(void*, const void*, void*, size_t) { return no_cuda_copier(); }
int32_t enn_copier_end(void*) { return no_cuda_copier(); }
int32_t enn_copier_hold(void*) { return no_cuda_copier(); }
int32_t enn_copier_done(void*, int32_t*) { return no_cuda_copier(); }
int32_t enn_copier_wait(void*) { return no_cuda_copier(); }

#endif

}  // extern "C"
