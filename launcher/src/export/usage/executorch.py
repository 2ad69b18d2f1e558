import torch
from executorch.runtime import Runtime

program = Runtime.get().load_program(here / "@ARTIFACT@")
outputs = program.load_method("forward").execute([torch.from_numpy(values) for values in given.values()])
answers = outputs[0].numpy()
