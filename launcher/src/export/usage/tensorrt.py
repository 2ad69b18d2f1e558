import tensorrt
import torch

engine = tensorrt.Runtime(tensorrt.Logger()).deserialize_cuda_engine((here / "@ARTIFACT@").read_bytes())
context = engine.create_execution_context()
tensors = {name: torch.from_numpy(values).cuda() for name, values in given.items()}
for name, tensor in tensors.items():
    # What lies there is taken for what the engine expects, whatever it is.
    if engine.get_tensor_dtype(name) != tensorrt.float32 or not context.set_input_shape(name, tuple(tensor.shape)):
        sys.exit(f"the engine takes no {name} of shape {tuple(tensor.shape)} and single precision")
names = map(engine.get_tensor_name, range(engine.num_io_tensors))
tensors |= {name: torch.empty(tuple(context.get_tensor_shape(name)), device="cuda") for name in names if name not in given}
for name, tensor in tensors.items():
    context.set_tensor_address(name, tensor.data_ptr())
context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
answers = tensors["@OUTPUT@"].cpu().numpy()
