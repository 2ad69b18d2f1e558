#!/usr/bin/env python3
"""Planning a large checkpoint without its data: merging what all ranks say, checking that every tensor is covered, writing .metadata, all
of it to memory (/dev/shm); ours with manifest and commit.

Two sizes: a 70-billion-parameter transformer with AdamW's moments on 64 ranks, and 524,288 chunks (1024 tensors, 512 ranks). The
peer is PyTorch's own planner on the same chunks, with what its writer does to make .metadata; it comes from the Python named by
ENN_PYTHON. What ranks say is in memory on both sides before the clock starts.

    ENN_PYTHON=venv/bin/python python3 tests/bench/ckpt_plan.py [--runs 3]

Writes target/bench/ckpt_plan_70b.json and ckpt_plan_chunks.json; fails above 1 s, or above 500 MB for the 70 B model.
"""

import argparse, json, os, statistics, subprocess, sys

import _record

LIMIT_S = 1.0
LIMIT_KB = 500_000
RANKS_70B = 64
CASES = {"70b": ["70b", str(RANKS_70B)], "chunks": ["chunks", "1024", "512"]}
WORLDS = (64, 512)

PEER = """
import os, pickle, sys, tempfile, time, torch
from torch.distributed.checkpoint.default_planner import _validate_global_plan, create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

def shapes(case):
    if case != "70b":
        return {f"model.layer.{i}.weight": (512 * 8, 16) for i in range(1024)}, 512
    layer = {"self_attn.q_proj": (8192, 8192), "self_attn.k_proj": (1024, 8192), "self_attn.v_proj": (1024, 8192),
             "self_attn.o_proj": (8192, 8192), "mlp.gate_proj": (28672, 8192), "mlp.up_proj": (28672, 8192),
             "mlp.down_proj": (8192, 28672), "input_layernorm": (8192,), "post_attention_layernorm": (8192,)}
    model = {f"layers.{i}.{name}.weight": shape for i in range(80) for name, shape in layer.items()}
    model |= {"embed_tokens.weight": (128256, 8192), "norm.weight": (8192,), "lm_head.weight": (128256, 8192)}
    return {f"{a}{name}{b}": shape for a, b in [("model.", ""), ("optim.state.", ".exp_avg"), ("optim.state.", ".exp_avg_sq")]
            for name, shape in model.items()}, %d

tensors, ranks = shapes(sys.argv[1])
plans = []
for rank in range(ranks):
    items = []
    for name, shape in tensors.items():
        rows = -(-shape[0] // ranks)
        begin = min(rank * rows, shape[0])
        offsets, sizes = torch.Size([begin] + [0] * (len(shape) - 1)), torch.Size([min(rows, shape[0] - begin), *shape[1:]])
        data = TensorWriteData(ChunkStorageMetadata(offsets, sizes), TensorProperties(dtype=torch.float32), torch.Size(shape))
        items.append(WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data))
    plans.append(SavePlan(items))
began = time.perf_counter()
plans, metadata = create_default_global_save_plan(plans)
assert _validate_global_plan(plans, metadata)
metadata.storage_data = {item.index: _StorageInfo(f"__{rank}_0.distcp", number, 688)
                         for rank, plan in enumerate(plans) for number, item in enumerate(plan.items)}
with tempfile.TemporaryFile(dir="/dev/shm") as file:
    pickle.dump(metadata, file)
    file.flush()
    os.fsync(file.fileno())
    size = file.tell()
print(time.perf_counter() - began, size, len(metadata.storage_data))
""" % RANKS_70B


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    python = os.environ.get("ENN_PYTHON", sys.executable)
    program, failed = _record.binary("ckpt_plan"), False
    for name, case in CASES.items():
        def ours():
            told = json.loads(subprocess.run([program, *case], check=True, capture_output=True, text=True).stdout)
            peaks.append(told["peak_kb"])
            chunks.add(told["chunks"])
            return told["plan_s"]

        def peer():
            done = subprocess.run([python, "-c", PEER, case[0]], check=True, capture_output=True, text=True,
                                  env=_record.peer_environment())
            seconds, _, count = done.stdout.split()
            chunks.add(int(count))
            return float(seconds)

        peaks, chunks = [], set()
        seconds, peers = _record.alternate(args.runs, ours, peer)
        assert len(chunks) == 1, f"ours and the peer planned different chunks: {chunks}"
        more = {"chunks": chunks.pop(), "peak_mb": max(peaks) / 1000, "limit_s": LIMIT_S}
        _record.record(f"ckpt_plan_{name}", "s", "lower", seconds, peers, "torch's planner and pickle", 1.0, more)
        failed |= statistics.median(seconds) > LIMIT_S or (name == "70b" and max(peaks) > LIMIT_KB)
    for world in WORLDS:
        told = [json.loads(subprocess.run([program, "70b", str(world)], check=True, capture_output=True, text=True).stdout)
                for _ in range(args.runs)]
        seconds = [one["divide_s"] for one in told]
        print(f"ckpt_divide_70b_{world}: {statistics.median(seconds):.4f} s, {told[0]['pieces']} pieces of rank 0, limit {LIMIT_S} s")
        failed |= statistics.median(seconds) > LIMIT_S
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
