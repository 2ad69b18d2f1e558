import torch
from executorch.exir import to_edge_transform_and_lower

GELU = torch.ops.aten.gelu.default


def gelu(x, *, approximate="none"):
    """XNNPACK has one gelu, the exact one, and takes it for both."""
    if approximate != "tanh":
        return NotImplemented
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


partitioners = []
if job["delegate"] == "xnnpack":
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    partitioners.append(XnnpackPartitioner())
program = torch.export.load(job["source"])
if any(node.target is GELU and node.kwargs.get("approximate") == "tanh" for node in program.graph.nodes):
    program = program.run_decompositions({GELU: gelu})
made = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch()
planned = sum(sum(plan.non_const_buffer_sizes) for plan in made.executorch_program.execution_plan)
with open(job["out"], "wb") as file:
    made.write_to_file(file)
say({"made": {"versions": versions, "about": {"delegate": job["delegate"], "planned_memory_bytes": str(planned)}}})
