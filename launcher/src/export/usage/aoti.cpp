// LIBTORCH is the folder of libtorch, or `torch` among the packages of Python, with include and lib:
//     c++ -std=c++17 '@FILE@' -I$LIBTORCH/include -L$LIBTORCH/lib -Wl,--no-as-needed,-rpath,$LIBTORCH/lib -ltorch -ltorch_cpu -lc10 -o usage && ./usage
#include <ATen/ops/from_blob.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

    if (n > @MOST@) {
        std::cerr << n << " rows were given, this package answers at most @MOST@ at once: enn export --batch 1:" << n << " makes one for so many\n";
        return 1;
    }
    // Its code looks at types, sizes and strides of what it is given only where this is set.
    setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", 1);
    torch::inductor::AOTIModelPackageLoader model("@ARTIFACT@");
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < inputs.size(); ++i)
        tensors.push_back(at::from_blob(given[i].data(), inputs[i].second).to(at::Device("@DEVICE@")));
    at::Tensor output = model.run(tensors)[0].cpu().contiguous();
    const float *answers = output.const_data_ptr<float>();
    const int64_t size = output.numel();
