// C face of CUDA's graphs as libtorch manages them: a stream of our own, capture, replay.
//
// Contract as in aten.cpp: 0, or 1 and then enn_aten_error() says why. Without ENN_CUDA every call refuses.

#include "aten_guard.h"

#include <cstdint>

#ifdef ENN_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#endif

extern "C" {

#ifdef ENN_CUDA

// Makes a stream of libtorch's pool the current one of this thread: the default stream cannot be captured. An urgent one: what other
// streams compute beside takes processors that idle between its kernels, and these do not wait for it.
int32_t enn_cuda_use_own_stream(int32_t device) {
  return enn::guarded([&] {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(true, static_cast<c10::DeviceIndex>(device)));
  });
}

int32_t enn_cuda_synchronize(int32_t device) {
  return enn::guarded([&] {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    c10::cuda::device_synchronize();
  });
}

// Free bytes of the device, and all of its bytes.
int32_t enn_cuda_memory(int32_t device, uint64_t* free_total) {
  return enn::guarded([&] {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    auto info = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    free_total[0] = info.first;
    free_total[1] = info.second;
  });
}

// A pool of device memory that several graphs share; they must be replayed in the order of their capture.
int32_t enn_graph_pool(uint64_t* out) {
  return enn::guarded([&] {
    auto id = at::cuda::graph_pool_handle();
    out[0] = id.first;
    out[1] = id.second;
  });
}

int32_t enn_graph_begin(const uint64_t* pool, void** out) {
  return enn::guarded([&] {
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    graph->capture_begin({pool[0], pool[1]}, cudaStreamCaptureModeThreadLocal);
    *out = graph.release();
  });
}

// Whether the current stream of this thread records a graph.
int32_t enn_graph_records(int32_t* out) {
  return enn::guarded([&] {
    *out = c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None ? 0 : 1;
  });
}

int32_t enn_graph_end(void* graph) {
  return enn::guarded([&] { static_cast<at::cuda::CUDAGraph*>(graph)->capture_end(); });
}

int32_t enn_graph_replay(void* graph) {
  return enn::guarded([&] { static_cast<at::cuda::CUDAGraph*>(graph)->replay(); });
}

void enn_graph_free(void* graph) {
  // The destructor resets; it must not throw through here.
  enn::guarded([&] { delete static_cast<at::cuda::CUDAGraph*>(graph); });
}

#else

static int32_t no_cuda() {
  enn::last_error() = "this enn-worker was built without CUDA";
  return 1;
}
int32_t enn_cuda_use_own_stream(int32_t) { return no_cuda(); }
int32_t enn_cuda_synchronize(int32_t) { return no_cuda(); }
int32_t enn_cuda_memory(int32_t, uint64_t*) { return no_cuda(); }
int32_t enn_graph_pool(uint64_t*) { return no_cuda(); }
int32_t enn_graph_begin(const uint64_t*, void**) { return no_cuda(); }
int32_t enn_graph_records(int32_t* out) {
  *out = 0;
  return 0;
}
int32_t enn_graph_end(void*) { return no_cuda(); }
int32_t enn_graph_replay(void*) { return no_cuda(); }
void enn_graph_free(void*) {}

#endif
}
