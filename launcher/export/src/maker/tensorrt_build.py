def builder_of(trt, log):
    try:
        return trt.Builder(log)
    except Exception as error:
        raise Missing(f"TensorRT finds no device to build for: {log.told(error)}") from None


def parsed(trt, log, network, path):
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(path):
        return
    said = []
    for at in range(min(parser.num_errors, SAID_MAX)):
        error = parser.get_error(at)
        place = [getattr(error, name)() for name in ("node_name", "node_operator") if hasattr(error, name)]
        said.append(f"{' '.join(filter(None, place))}: {error.desc()}".removeprefix(": "))
    raise GaveUp("; ".join(said) or log.told("it cannot be parsed"))


def configured(trt, builder, network, profile):
    config = builder.create_builder_config()
    # Rounded factors would be told apart from native predictions.
    config.clear_flag(trt.BuilderFlag.TF32)
    # NaN means: missing. Older releases have no such flag, and do not rely on its opposite.
    if hasattr(trt.BuilderFlag, "STRICT_NANS"):
        config.set_flag(trt.BuilderFlag.STRICT_NANS)
    shapes = builder.create_optimization_profile()
    for at in range(network.num_inputs):
        name = network.get_input(at).name
        if name not in profile:
            raise Refused(f"the model has an input {name}, which the profile lacks")
        shapes.set_shape(name, *profile[name])
    if config.add_optimization_profile(shapes) < 0:
        raise Refused("the profile of batches does not fit the model's inputs")
    return config


def build():
    trt = tensorrt()
    about = Device(job["driver"]).about()
    log = logger(trt)
    builder = builder_of(trt, log)
    # Types are those of the file: always so in 11, asked for in 10.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parsed(trt, log, network, job["source"])
    plan = builder.build_serialized_network(network, configured(trt, builder, network, job["profile"]))
    if plan is None:
        raise GaveUp(log.told("no engine was built"))
    with open(job["out"], "wb") as file:
        file.write(plan)
    say({"made": {"versions": versions, "about": about}})


told(build)
