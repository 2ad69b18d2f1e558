import os
import torch

if n > @MOST@:
    sys.exit(f"{n} rows were given, this package answers at most @MOST@ at once: enn export --batch 1:{n} makes one for so many")
# Its code looks at types, sizes and strides of what it is given only where this is set.
os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
model = torch._inductor.aoti_load_package(str(here / "@ARTIFACT@"))
outputs = model(*(torch.from_numpy(values).to("@DEVICE@") for values in given.values()))
answers = @ANSWER@.detach().cpu().numpy()
