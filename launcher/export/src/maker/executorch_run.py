import torch
from executorch.runtime import Runtime

method = Runtime.get().load_program(job["artifact"]).load_method("forward")
say({"ready": versions["executorch"]})
while True:
    question = hear()
    with open(question["inputs"], "rb") as file:
        inputs = []
        for shape in question["shapes"]:
            values = torch.frombuffer(bytearray(file.read(4 * torch.Size(shape).numel())), dtype=torch.float32)
            inputs.append(values.reshape(shape))
    outputs = [output.to(torch.float32).contiguous() for output in method.execute(inputs)]
    with open(question["outputs"], "wb") as file:
        for output in outputs:
            file.write(output.numpy().tobytes())
    say({"answered": [list(output.shape) for output in outputs]})
