// Interface of Gloo as far as torch/csrc/distributed/c10d/ProcessGroupGloo.hpp and c10d_cut.h name it; the code is inside
// libtorch_cpu. Only declarations: nothing here may be instantiated by the shim except Device, a pure interface, so that no
// layout of Gloo is assumed. A libtorch whose Gloo differs fails at linking.
#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
namespace transport {
class UnboundBuffer;

// The connections of one group.
class Context {
 public:
  virtual ~Context();
};

// Where connections come from. The order is that of libtorch's own table.
class Device {
 public:
  virtual ~Device() = 0;
  virtual std::string str() const = 0;
  virtual const std::string& getPCIBusID() const = 0;
  virtual int getInterfaceSpeed() const = 0;
  virtual bool hasGPUDirect() const = 0;
  virtual std::shared_ptr<Context> createContext(int rank, int size) = 0;
};

namespace tcp {
class Context : public ::gloo::transport::Context {
 public:
  ~Context() override;
  // Closes every connection and ends whatever waits for one.
  void signalException(const std::string& message);
};

class Device : public ::gloo::transport::Device {
 public:
  ~Device() override;
  // Ends the thread that reads and writes, and stops listening.
  void shutdown();
};
} // namespace tcp
} // namespace transport
class Algorithm;
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
