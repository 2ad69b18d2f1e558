class Engine:
    """The job's engine, loaded."""

    def __init__(self):
        self.trt, self.device = tensorrt(), Device(job["driver"])
        self.log = logger(self.trt)
        with open(job["artifact"], "rb") as file:
            plan = file.read()
        # The engine lives no longer than its runtime.
        self.runtime = self.trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise GaveUp(self.log.told("it is no engine of this TensorRT and this device"))
        self.context = self.engine.create_execution_context()
        if self.context is None:
            raise GaveUp(self.log.told("it cannot be set up"))
        self.stream = self.device.stream()
        for name in self.check_ports():
            if self.engine.get_tensor_dtype(name) != self.trt.float32:
                raise Refused(f"{name} has elements of type {self.engine.get_tensor_dtype(name)}, expected f32")

    def check_ports(self):
        names = [self.engine.get_tensor_name(at) for at in range(self.engine.num_io_tensors)]
        inputs = {name for name in names if self.engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT}
        if inputs != set(job["inputs"]) or set(names) - inputs != set(job["outputs"]):
            raise Refused(f"it has inputs {sorted(inputs)} and outputs {sorted(set(names) - inputs)}, "
                          f"expected {sorted(job['inputs'])} and {sorted(job['outputs'])}")
        return names

    def placed(self, held, name, shape):
        """Device memory for a tensor, and its size."""
        size = 4
        for part in shape:
            size *= part
        held.append(self.device.allocate(size))
        self.context.set_tensor_address(name, held[-1].value)
        return held[-1], size

    def answer(self, question):
        held = []
        try:
            with open(question["inputs"], "rb") as file:
                for name, shape in zip(job["inputs"], question["shapes"], strict=True):
                    if not self.context.set_input_shape(name, tuple(shape)):
                        raise GaveUp(self.log.told(f"input {name} of shape {shape} is outside the profile"))
                    address, size = self.placed(held, name, shape)
                    self.device.fill(address, file.read(size))
            shapes = [list(self.context.get_tensor_shape(name)) for name in job["outputs"]]
            places = [self.placed(held, name, shape) for name, shape in zip(job["outputs"], shapes)]
            if not self.context.execute_async_v3(self.stream.value):
                raise GaveUp(self.log.told("it did not run"))
            self.device.call("cuStreamSynchronize", self.stream)
            with open(question["outputs"], "wb") as file:
                for address, size in places:
                    file.write(self.device.read(address, size))
            say({"answered": shapes})
        finally:
            for address in held:
                self.device.free(address)


def run():
    engine = Engine()
    say({"ready": versions["tensorrt"]})
    while True:
        question = hear()
        told(lambda: engine.answer(question))


told(run)
