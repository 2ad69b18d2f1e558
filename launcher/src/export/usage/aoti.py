import torch

model = torch._inductor.aoti_load_package(str(here / "@ARTIFACT@"))
outputs = model(*(torch.from_numpy(values).to("@DEVICE@") for values in given.values()))
answers = @ANSWER@.detach().cpu().numpy()
