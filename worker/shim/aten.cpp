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
#include <optional>
#include <string>

extern "C" {

// One operand. `tag` says which member counts.
struct enn_arg {
  int32_t tag;
  int64_t integer;
  double real;
  const void* data; // A tensor, or the first of `count` integers, reals, booleans (bytes), characters or tensor pointers.
  size_t count;
};

// One argument of a schema.
struct enn_argument {
  int32_t writes; // 1 if it is written in place, else 0.
  uint32_t takes; // Bit i: an operand of tag i.
  const char* name; // Lives as long as the operator.
};

const char* enn_aten_error() { return enn::last_error().c_str(); }

int32_t enn_aten_find(const char* name, const char* overload, void** out) {
  return enn::guarded([&] {
    auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    *out = new c10::OperatorHandle(found);
  });
}

// Gives the name and the overload of every operator that has a schema to `take`.
int32_t enn_aten_operators(void (*take)(void* to, const char* name, const char* overload), void* to) {
  return enn::guarded([&] {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& known : dispatcher.getAllOpNames()) {
      if (dispatcher.findSchema(known)) take(to, known.name.c_str(), known.overload_name.c_str());
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

enum Tag : int32_t {
  NONE = 0,
  TENSOR = 1,
  INT = 2,
  REAL = 3,
  BOOL = 4,
  INTS = 5,
  BOOLS = 6,
  TENSORS = 7,
  TENSORS_OR_NONE = 8, // A null pointer is none.
  REALS = 9,
  TEXT = 10,
  KIND = 11,
  DEVICE = 12, // That of a tensor.
};

constexpr uint32_t bit(Tag tag) {
  return uint32_t{1} << tag;
}

// The operands that a list takes.
uint32_t listed(const c10::Type& element) {
  switch (element.kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return bit(INTS);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType:
      return bit(REALS);
    case c10::TypeKind::BoolType:
      return bit(BOOLS);
    case c10::TypeKind::TensorType:
      return bit(TENSORS);
    case c10::TypeKind::OptionalType:
      return *element.expectRef<c10::OptionalType>().getElementType() == *c10::TensorType::get() ? bit(TENSORS_OR_NONE) : 0;
    default:
      return 0;
  }
}

// The operands that an argument of a type takes; 0 if none here does.
uint32_t takes(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::OptionalType:
      return bit(NONE) | takes(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::TensorType:
      return bit(TENSOR);
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::MemoryFormatType:
      return bit(INT);
    case c10::TypeKind::ScalarTypeType:
      return bit(INT) | bit(KIND);
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return bit(REAL);
    case c10::TypeKind::NumberType:
      return bit(INT) | bit(REAL) | bit(BOOL);
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return bit(BOOL);
    case c10::TypeKind::StringType:
      return bit(TEXT);
    case c10::TypeKind::DeviceObjType:
      return bit(DEVICE);
    case c10::TypeKind::ListType:
      return listed(*type.expectRef<c10::ListType>().getElementType());
    default:
      return 0;
  }
}

c10::IValue value_of(const enn_arg& arg) {
  switch (arg.tag) {
    case TENSOR:
      return *static_cast<const at::Tensor*>(arg.data);
    case INT:
    case KIND:
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
    case TENSORS_OR_NONE: {
      auto first = static_cast<const at::Tensor* const*>(arg.data);
      c10::List<std::optional<at::Tensor>> list;
      for (size_t i = 0; i < arg.count; ++i) {
        list.push_back(first[i] == nullptr ? std::nullopt : std::optional<at::Tensor>(*first[i]));
      }
      return list;
    }
    case REALS: {
      auto first = static_cast<const double*>(arg.data);
      return c10::List<double>(at::ArrayRef<double>(first, arg.count));
    }
    case TEXT:
      return std::string(static_cast<const char*>(arg.data), arg.count);
    case DEVICE:
      return static_cast<const at::Tensor*>(arg.data)->device();
    default:
      return c10::IValue();
  }
}

} // namespace

// The arguments of the schema, in order.
extern "C" int32_t enn_aten_arguments(void* handle, enn_argument* out, size_t room, size_t* count) {
  return enn::guarded([&] {
    const auto& arguments = static_cast<const c10::OperatorHandle*>(handle)->schema().arguments();
    TORCH_CHECK(arguments.size() <= room, "a schema of ", arguments.size(), " arguments");
    *count = arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      // The type as the schema has it: to the call an element kind is an integer.
      out[i] = {writes ? 1 : 0, takes(*arguments[i].real_type()), arguments[i].name().c_str()};
    }
  });
}

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
