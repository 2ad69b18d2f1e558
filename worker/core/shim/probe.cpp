// What this build of the worker is, and what libtorch it found at run time. Same contract as c10d.cpp, but nothing here
// fails: strings live as long as the process.

#include <string>

#include <ATen/Version.h>
#include <torch/headeronly/version.h>
#ifdef ENN_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#endif

namespace {

// enn reads it from the bytes of a program that it does not start for this (launcher/src/libtorch/worker.rs).
constexpr char MARK[] = "enn-worker for libtorch ";
constexpr const char* MARKED = "enn-worker for libtorch " TORCH_VERSION;

} // namespace

extern "C" {

// Version of the headers this was compiled with.
const char* enn_probe_built() {
  return MARKED + sizeof(MARK) - 1;
}

// libtorch's own description of its build.
const char* enn_probe_config() {
  static const std::string config = [] {
    try {
      return at::show_config();
    } catch (...) {
      return std::string();
    }
  }();
  return config.c_str();
}

// Version of the NCCL that was loaded; empty in a build without CUDA.
const char* enn_probe_nccl() {
  static const std::string version = [] {
    try {
#ifdef ENN_CUDA
      return c10d::getNcclVersion();
#else
      return std::string();
#endif
    } catch (...) {
      return std::string();
    }
  }();
  return version.c_str();
}

}  // extern "C"
