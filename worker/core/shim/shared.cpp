// Tensors over memory of Rust's: the memory's owner is let go of when the last tensor on it is gone.

#include "aten_guard.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <memory>

extern "C" {

// A tensor of the shape, strides and kind of `like` at `data`. `release(owner)` is called exactly once, from any thread:
// when the last tensor on the memory is gone, or here when this fails.
int32_t enn_tensor_over(void* data, const at::Tensor* like, void (*release)(void*), void* owner, at::Tensor** out) {
  return enn::guarded([&] {
    std::shared_ptr<void> held(owner, release);
    *out = new at::Tensor(at::from_blob(data, like->sizes(), like->strides(), [held](void*) {}, like->options()));
  });
}
}
