// C face of libtorch's dispatcher: operators by name, called boxed; and a tensor's version counter.
//
// Contract of every function: returns 0, or 1 and then enn_aten_error() gives the sentence for this thread. No C++
// exception crosses. Tensor pointers are tch's own (heap at::Tensor): operands are borrowed, results belong to the caller.

#include "aten_guard.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>

extern "C" {

// One operand. `tag` says which member counts.
struct enn_arg {
  int32_t tag;
  int64_t integer;
  double real;
  const void* data; // A tensor, or the first of `count` integers, booleans (bytes) or tensor pointers.
  size_t count;
};

const char* enn_aten_error() { return enn::last_error().c_str(); }

int32_t enn_aten_find(const char* name, const char* overload, void** out) {
  return enn::guarded([&] {
    auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    *out = new c10::OperatorHandle(found);
  });
}

// For each argument of the schema 1 if it is written in place, else 0.
int32_t enn_aten_arguments(void* handle, uint8_t* writes, size_t room, size_t* count) {
  return enn::guarded([&] {
    const auto& arguments = static_cast<const c10::OperatorHandle*>(handle)->schema().arguments();
    TORCH_CHECK(arguments.size() <= room, "a schema of ", arguments.size(), " arguments");
    *count = arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      writes[i] = alias != nullptr && alias->isWrite() ? 1 : 0;
    }
  });
}

// A tensor of the meta device: sizes and kind, no memory.
int32_t enn_aten_hollow(const int64_t* sizes, size_t axes, const at::Tensor* like, at::Tensor** out) {
  return enn::guarded([&] {
    *out = new at::Tensor(at::empty(at::IntArrayRef(sizes, axes), like->options().device(at::kMeta)));
  });
}

// Gives the tensor's storage `bytes` bytes of fresh memory, 0 for none; what it held is lost. Whoever views it views the new.
int32_t enn_aten_renew_storage(const at::Tensor* tensor, int64_t bytes) {
  return enn::guarded([&] {
    auto* storage = tensor->storage().unsafeGetStorageImpl();
    auto* allocator = storage->allocator();
    TORCH_CHECK(allocator != nullptr, "storage that cannot be renewed");
    // What is there goes first: there may not be room for both.
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
    storage->set_data_ptr_noswap(allocator->allocate(bytes));
    storage->set_nbytes(bytes);
  });
}

int32_t enn_aten_version(const at::Tensor* tensor, int64_t* out) {
  return enn::guarded([&] { *out = static_cast<int64_t>(tensor->_version()); });
}

// Takes into `hash`, per tensor: kind, device class, alignment up to `alignment_max` (a power of two), sizes, and the strides
// where they are not dense. No value, no address, no device's number.
int32_t enn_aten_layouts(const at::Tensor* const* tensors, size_t count, uint64_t alignment_max, uint64_t* hash) {
  return enn::guarded([&] {
    uint64_t state = *hash;
    const auto take = [&](uint64_t word) {
      const auto product = static_cast<unsigned __int128>(state ^ word) * 0x9e3779b97f4a7c15u;
      state = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    };
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& tensor = *tensors[i];
      const uint64_t address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) | alignment_max;
      const uint64_t alignment = address & (~address + 1);
      const bool dense = tensor.is_contiguous();
      const auto kind = static_cast<uint64_t>(tensor.scalar_type());
      const auto axes = static_cast<uint64_t>(tensor.dim());
      take(kind | uint64_t{tensor.is_cuda()} << 8 | uint64_t{dense} << 9 | axes << 16 | alignment << 32 | uint64_t{1} << 63);
      for (int64_t size : tensor.sizes()) take(static_cast<uint64_t>(size));
      if (dense) continue;
      for (int64_t stride : tensor.strides()) take(static_cast<uint64_t>(stride));
    }
    *hash = state;
  });
}
}

namespace {

enum Tag : int32_t { NONE = 0, TENSOR = 1, INT = 2, REAL = 3, BOOL = 4, INTS = 5, BOOLS = 6, TENSORS = 7 };

c10::IValue value_of(const enn_arg& arg) {
  switch (arg.tag) {
    case TENSOR:
      return *static_cast<const at::Tensor*>(arg.data);
    case INT:
      return arg.integer;
    case REAL:
      return arg.real;
    case BOOL:
      return arg.integer != 0;
    case INTS: {
      auto first = static_cast<const int64_t*>(arg.data);
      return c10::List<int64_t>(at::IntArrayRef(first, arg.count));
    }
    case BOOLS: {
      auto first = static_cast<const uint8_t*>(arg.data);
      c10::List<bool> list;
      for (size_t i = 0; i < arg.count; ++i) list.push_back(first[i] != 0);
      return list;
    }
    case TENSORS: {
      auto first = static_cast<const at::Tensor* const*>(arg.data);
      c10::List<at::Tensor> list;
      for (size_t i = 0; i < arg.count; ++i) list.push_back(*first[i]);
      return list;
    }
    default:
      return c10::IValue();
  }
}

} // namespace

extern "C" int32_t enn_aten_call(void* handle, const enn_arg* args, size_t count, at::Tensor** outs, size_t room, size_t* made) {
  return enn::guarded([&] {
    *made = 0;
    torch::jit::Stack stack;
    stack.reserve(count);
    for (size_t i = 0; i < count; ++i) stack.push_back(value_of(args[i]));
    static_cast<const c10::OperatorHandle*>(handle)->callBoxed(&stack);
    auto give = [&](at::Tensor&& result) {
      TORCH_CHECK(*made < room, "more results than the caller has room for");
      outs[(*made)++] = new at::Tensor(std::move(result));
    };
    for (auto& result : stack) {
      if (result.isTensorList()) {
        for (const at::Tensor& one : result.toTensorVector()) give(at::Tensor(one));
      } else if (result.isTensor()) {
        give(std::move(result).toTensor());
      }
    }
  });
}
