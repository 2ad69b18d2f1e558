import torch
from executorch.exir import to_edge_transform_and_lower

partitioners = []
if job["delegate"] == "xnnpack":
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    partitioners.append(XnnpackPartitioner())
program = torch.export.load(job["source"])
made = to_edge_transform_and_lower(program, partitioner=partitioners).to_executorch()
planned = sum(sum(plan.non_const_buffer_sizes) for plan in made.executorch_program.execution_plan)
with open(job["out"], "wb") as file:
    made.write_to_file(file)
say({"made": {"versions": versions, "about": {"delegate": job["delegate"], "planned_memory_bytes": str(planned)}}})
