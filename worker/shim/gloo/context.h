// Interface of Gloo as far as torch/csrc/distributed/c10d/ProcessGroupGloo.hpp names it; the code is inside libtorch_cpu.
// Only declarations: nothing here may be instantiated by the shim, so that no layout of Gloo is assumed.
#pragma once
#include <chrono>
#include <memory>
#include <vector>

namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport
class Algorithm;
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
