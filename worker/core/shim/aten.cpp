// C face of libtorch's dispatcher: operators by name, called boxed; and a tensor's version counter.
//
// Contract of every function: returns 0, or 1 and then enn_aten_error() gives the sentence for this thread. No C++
// exception crosses. Tensor pointers are tch's own (heap at::Tensor): operands are borrowed, results belong to the caller.

#include "aten_guard.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

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

// One handle for each operator that was ever asked for; it lives as long as the process.
int32_t enn_aten_find(const char* name, const char* overload, void** out) {
  return enn::guarded([&] {
    static std::mutex mutex;
    static auto& known = *new std::unordered_map<c10::OperatorName, c10::OperatorHandle>();
    auto found = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const std::lock_guard<std::mutex> lock(mutex);
    *out = &known.try_emplace(found.operator_name(), found).first->second;
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

// What is put in an operand's place.
using Operand = c10::function_ref<at::Tensor(const at::Tensor&)>;

c10::IValue value_of(const enn_arg& arg, Operand operand) {
  switch (arg.tag) {
    case TENSOR:
      return operand(*static_cast<const at::Tensor*>(arg.data));
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
      for (size_t i = 0; i < arg.count; ++i) list.push_back(operand(*first[i]));
      return list;
    }
    case TENSORS_OR_NONE: {
      auto first = static_cast<const at::Tensor* const*>(arg.data);
      c10::List<std::optional<at::Tensor>> list;
      for (size_t i = 0; i < arg.count; ++i) {
        list.push_back(first[i] == nullptr ? std::nullopt : std::optional<at::Tensor>(operand(*first[i])));
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

// The tensors among an operator's results, those of lists one by one.
std::vector<at::Tensor> called(void* handle, const enn_arg* args, size_t count, Operand operand) {
  torch::jit::Stack stack;
  stack.reserve(count);
  for (size_t i = 0; i < count; ++i) stack.push_back(value_of(args[i], operand));
  static_cast<const c10::OperatorHandle*>(handle)->callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (auto& result : stack) {
    if (result.isTensorList()) {
      for (const at::Tensor& one : result.toTensorVector()) results.push_back(one);
    } else if (result.isTensor()) {
      results.push_back(std::move(result).toTensor());
    }
  }
  return results;
}

} // namespace

// Whether an operator draws random numbers, so that a second call gives other ones.
extern "C" int32_t enn_aten_draws(void* handle, int32_t* out) {
  return enn::guarded([&] {
    *out = static_cast<const c10::OperatorHandle*>(handle)->hasTag(at::Tag::nondeterministic_seeded) ? 1 : 0;
  });
}

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
    auto results = called(handle, args, count, [](const at::Tensor& operand) { return operand; });
    TORCH_CHECK(results.size() <= room, "more results than the caller has room for");
    for (auto& result : results) outs[(*made)++] = new at::Tensor(std::move(result));
  });
}

// The gradients of an operator's operands as libtorch's own rules give them: it is called once more for that. `given` has a gradient for
// each result, or null; `wanted` is 1 for each operand that gets one, in order. Zeros for an operand that nothing depends on.
extern "C" int32_t enn_aten_gradients(
    void* handle, const enn_arg* args, size_t count, const at::Tensor* const* given, size_t results, const uint8_t* wanted,
    size_t operands, at::Tensor** outs) {
  return enn::guarded([&] {
    const at::AutoGradMode records(true);
    std::vector<at::Tensor> leaves, roots, gradients;
    size_t next = 0;
    const auto made = called(handle, args, count, [&](const at::Tensor& operand) {
      TORCH_CHECK(next < operands, "more operands than the caller has said");
      auto leaf = operand.detach();
      if (wanted[next++] != 0) leaves.push_back(leaf.requires_grad_(true));
      return leaf;
    });
    TORCH_CHECK(made.size() == results, made.size(), " results, but gradients of ", results);
    for (size_t i = 0; i < results; ++i) {
      if (given[i] == nullptr || !made[i].requires_grad()) continue;
      roots.push_back(made[i]);
      gradients.push_back(*given[i]);
    }
    auto found = roots.empty() ? std::vector<at::Tensor>(leaves.size())
                               : torch::autograd::grad(roots, leaves, gradients, std::nullopt, false, true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      outs[i] = new at::Tensor(found[i].defined() ? found[i].detach() : at::zeros_like(leaves[i]));
    }
  });
}
