// C face of exported artifacts at work: PT2 archives in libtorch's own interpreter of them, packages of AOTInductor.
//
// Contract as in aten.cpp: 0, or 1 and then enn_aten_error() says why. Artifacts belong to the caller, who frees them.

#include "aten_guard.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Flags.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/headeronly/version.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

// libtorch 2.13 declares the interpreter of archives, too, but has it in libtorch_python.so only, which exports nothing of it.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
#define ENN_ARCHIVES
#include <torch/nativert/ModelRunnerHandle.h>

C10_DECLARE_int(caffe2_log_level);
#endif

namespace {

// The model inside an archive or package.
constexpr const char* MODEL = "model";

struct Artifact {
  virtual ~Artifact() = default;
  virtual std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) = 0;
};

#ifdef ENN_ARCHIVES
struct Archive : Artifact {
  explicit Archive(const char* path) : runner(path, MODEL) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override {
    std::vector<at::Tensor> outputs;
    for (const auto& value : runner.runWithFlatInputsAndOutputs({inputs.begin(), inputs.end()})) {
      TORCH_CHECK(value.isTensor(), "an output is no tensor but ", value.tagKind());
      outputs.push_back(value.toTensor());
    }
    return outputs;
  }

  torch::nativert::ModelRunnerHandle runner;
};
#endif

struct Package : Artifact {
  Package(const char* path, int32_t device)
      : loader(checked(path), MODEL, false, 1, static_cast<c10::DeviceIndex>(device)) {}

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) override { return loader.run(inputs); }

  // The code of a package takes what it is given for tensors of the types, sizes and strides that it was compiled for. It looks at them
  // only where this is set, and asks once.
  static const char* checked(const char* path) {
    TORCH_CHECK(setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1) == 0, "the check of its inputs cannot be asked for");
    return path;
  }

  torch::inductor::AOTIModelPackageLoader loader;
};

} // namespace

extern "C" {

// Whether this libtorch runs archives.
int32_t enn_artifact_archives() {
#ifdef ENN_ARCHIVES
  return 1;
#else
  return 0;
#endif
}

int32_t enn_artifact_archive(const char* path, void** out) {
  return enn::guarded([&] {
#ifdef ENN_ARCHIVES
    // It warns of every operation for which it has no faster way.
    constexpr int ERRORS = 2;
    if (FLAGS_caffe2_log_level < ERRORS) FLAGS_caffe2_log_level = ERRORS;
    *out = static_cast<Artifact*>(new Archive(path));
#else
    TORCH_CHECK(false, "libtorch ", TORCH_VERSION, " has no interpreter of ", path, " outside of Python");
#endif
  });
}

// `device` is -1 for the one it was compiled for.
int32_t enn_artifact_package(const char* path, int32_t device, void** out) {
  return enn::guarded([&] { *out = static_cast<Artifact*>(new Package(path, device)); });
}

void enn_artifact_free(void* artifact) {
  delete static_cast<Artifact*>(artifact);
}

// What a package says of itself, without loading its code: name, tab, value, newline, by name. Valid until the next call on this
// thread.
int32_t enn_artifact_about(const char* path, const char** out) {
  return enn::guarded([&] {
    static thread_local std::string text;
    text.clear();
    const auto unsorted = torch::inductor::AOTIModelPackageLoader::load_metadata_from_package(path, MODEL);
    for (const auto& [name, value] : std::map<std::string, std::string>(unsorted.begin(), unsorted.end())) {
      text += name + "\t" + value + "\n";
    }
    *out = text.c_str();
  });
}

// Results are the caller's; `made` says how many there are.
int32_t enn_artifact_run(
    void* artifact, const at::Tensor* const* inputs, size_t count, at::Tensor** outs, size_t room, size_t* made) {
  return enn::guarded([&] {
    c10::InferenceMode inference;
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < count; ++i) given.push_back(*inputs[i]);
    auto results = static_cast<Artifact*>(artifact)->run(given);
    TORCH_CHECK(results.size() <= room, "it has ", results.size(), " outputs, at most ", room, " are taken");
    for (size_t i = 0; i < results.size(); ++i) outs[i] = new at::Tensor(results[i].contiguous());
    *made = results.size();
  });
}

// Code of AOTInductor asks for libtorch.so, of which a libtorch without CUDA may have a linker script only. What it needs is
// loaded already: a library of that name suffices, which `path` is.
int32_t enn_artifact_stand_in(const char* path) {
  return enn::guarded([&] {
    if (dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
    TORCH_CHECK(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != nullptr, dlerror());
  });
}

} // extern "C"
