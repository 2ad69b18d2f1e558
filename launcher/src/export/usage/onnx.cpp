// ORT is the folder of a release of onnxruntime, with include and lib:
//     c++ -std=c++17 '@FILE@' -I$ORT/include -L$ORT/lib -Wl,-rpath,$ORT/lib -lonnxruntime -o usage && ./usage
#include <onnxruntime_cxx_api.h>

    Ort::Env environment;
    Ort::Session session(environment, "@ARTIFACT@", Ort::SessionOptions());
    auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
    std::vector<const char *> names;
    std::vector<Ort::Value> tensors;
    for (size_t i = 0; i < inputs.size(); ++i) {
        auto &[name, shape] = inputs[i];
        names.push_back(name);
        tensors.push_back(Ort::Value::CreateTensor<float>(memory, given[i].data(), given[i].size(), shape.data(), shape.size()));
    }
    const char *asked = "@OUTPUT@";
    auto outputs = session.Run(Ort::RunOptions(), names.data(), tensors.data(), tensors.size(), &asked, 1);
    const float *answers = outputs[0].GetTensorData<float>();
    const int64_t size = outputs[0].GetTensorTypeAndShapeInfo().GetElementCount();
