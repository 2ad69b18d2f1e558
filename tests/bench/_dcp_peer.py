"""PyTorch's side of checkpoint.py: holds a state and does what it is told, a line an order, a line of seconds an answer.

`_dcp_peer.py RANK WORLD BYTES TENSORS STORE [cuda]`; orders as those of the example `checkpoint_speed`: save DIR, async DIR, load DIR, hf DIR.
"""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main():
    rank, world, count, tensors = (int(text) for text in sys.argv[1:5])
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if sys.argv[6:] else torch.device("cpu")
    backend = "cpu:gloo,cuda:nccl" if sys.argv[6:] else "gloo"
    if sys.argv[6:]:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{sys.argv[5]}", rank=rank, world_size=world)
    elements = count // world // tensors // 4
    state = {f"model.rank{rank}.layer{index:05}.weight": torch.rand(elements, device=device) for index in range(tensors)}

    def obey(order, folder):
        began = time.perf_counter()
        if order == "save":
            dcp.save(state, checkpoint_id=folder)
        elif order == "hf":
            from torch.distributed.checkpoint import HuggingFaceStorageWriter
            names = {name: 1 for name in state}
            dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=folder, fqn_to_index_mapping=names, save_distributed=True))
        elif order == "async":
            saving = dcp.async_save(state, checkpoint_id=folder)
            blocked = time.perf_counter() - began
            saving.result()
            return blocked
        elif order == "load":
            dcp.load(state, checkpoint_id=folder)
        else:
            raise ValueError(f"found {order!r}, expected an order")
        return time.perf_counter() - began

    print(0, flush=True)
    for line in sys.stdin:
        print(obey(*line.split()), flush=True)


main()
