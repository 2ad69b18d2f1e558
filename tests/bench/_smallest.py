"""The smallest model, for benches in which it is not what is measured."""

# A [model] table; the patch, which goes by the grid, is to follow.
MODEL = """
[model]
preset = "spatial"
d_model = 16
heads = 2
spatial_depth = 1
spatial_latents = 2
fuser_latents = 2
fuser_rounds = 1
fuser_self_layers = 0
collector_depth = 0
"""
