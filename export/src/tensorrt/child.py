"""Builds and runs TensorRT engines. A job a line on stdin, {"task": …}; an answer a line on stdout, {"ok": …} or {"error": {"kind", "why"}}.

Kinds: missing (no TensorRT of a version that suits, or no device), refused (the model, the engine or the inputs). Needs nothing but
TensorRT itself: device memory is the driver's. The end of stdin ends it, so that it never outlives whoever started it.
"""

import ctypes
import json
import os
import queue
import sys
import threading

MAJOR = (10, 11)
SAID_MAX = 8


class Failure(Exception):
    def __init__(self, kind, why):
        super().__init__(why)
        self.kind = kind


def tensorrt():
    try:
        import tensorrt as trt
    except Exception as error:
        raise Failure("missing", f"{sys.executable} cannot import tensorrt: {error}") from None
    if trt.__version__.split(".")[0] not in map(str, MAJOR):
        raise Failure("missing", f"{sys.executable} has TensorRT {trt.__version__}, expected {MAJOR[0]} or {MAJOR[1]}")
    return trt


def logger(trt):
    """A logger that keeps the last errors, which TensorRT tells nobody else."""

    class Log(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)
            self.said = []

        def log(self, severity, text):
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.said = [*self.said, text][-SAID_MAX:]

        def told(self, otherwise):
            return "; ".join(self.said) or otherwise

    return Log()


class Device:
    """The first GPU through the driver's own library, in the context that TensorRT uses."""

    def __init__(self, library):
        try:
            self.driver = ctypes.CDLL(library)
        except OSError as error:
            raise Failure("missing", f"no NVIDIA driver: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise Failure("missing" if name.startswith(("cuInit", "cuDevice", "cuCtx")) else "refused", f"{name} of the NVIDIA driver gave {code}")

    def about(self):
        name, major, minor = ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), self.device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        self.call("cuDeviceGetAttribute", ctypes.byref(major), ctypes.c_int(75), self.device)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), ctypes.c_int(76), self.device)
        return {"device": name.value.decode(errors="replace"), "capability": f"{major.value}.{minor.value}"}

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address

    def free(self, address):
        self.call("cuMemFree_v2", address)

    def fill(self, address, data):
        self.call("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size))
        return data.raw

    def stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(0))
        return stream


def builder_of(trt, log):
    try:
        return trt.Builder(log)
    except Exception as error:
        raise Failure("missing", f"TensorRT finds no device to build for: {log.told(error)}") from None


def parsed(trt, log, network, path):
    parser = trt.OnnxParser(network, log)
    if parser.parse_from_file(path):
        return
    said = []
    for at in range(min(parser.num_errors, SAID_MAX)):
        error = parser.get_error(at)
        place = [getattr(error, name)() for name in ("node_name", "node_operator") if hasattr(error, name)]
        said.append(f"{' '.join(filter(None, place))}: {error.desc()}".removeprefix(": "))
    raise Failure("refused", "; ".join(said) or log.told("it cannot be parsed"))


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
            raise Failure("refused", f"the model has an input {name}, which the profile lacks")
        shapes.set_shape(name, *profile[name])
    if config.add_optimization_profile(shapes) < 0:
        raise Failure("refused", "the profile of batches does not fit the model's inputs")
    return config


def build(job):
    trt = tensorrt()
    about = Device(job["driver"]).about()
    log = logger(trt)
    builder = builder_of(trt, log)
    # Types are those of the file: always so in 11, asked for in 10.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parsed(trt, log, network, job["onnx"])
    plan = builder.build_serialized_network(network, configured(trt, builder, network, job["profile"]))
    if plan is None:
        raise Failure("refused", log.told("no engine was built"))
    with open(job["out"], "wb") as file:
        file.write(plan)
    return {"version": trt.__version__, **about}


class Engine:
    """A loaded engine."""

    def __init__(self, job):
        self.trt = tensorrt()
        self.device = Device(job["driver"])
        self.log = logger(self.trt)
        with open(job["engine"], "rb") as file:
            plan = file.read()
        # The engine lives no longer than its runtime.
        self.runtime = self.trt.Runtime(self.log)
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        if self.engine is None:
            raise Failure("refused", self.log.told("it is no engine of this TensorRT and this device"))
        self.context = self.engine.create_execution_context()
        if self.context is None:
            raise Failure("refused", self.log.told("it cannot be set up"))
        self.stream = self.device.stream()
        self.names = [self.engine.get_tensor_name(at) for at in range(self.engine.num_io_tensors)]
        wrong = [name for name in self.names if self.engine.get_tensor_dtype(name) != self.trt.float32]
        if wrong:
            raise Failure("refused", f"{', '.join(wrong)}: expected f32")

    def about(self):
        return {"version": self.trt.__version__, **self.device.about()}

    def run(self, job):
        inputs = {tensor["name"]: tensor for tensor in job["inputs"]}
        takes = [name for name in self.names if self.engine.get_tensor_mode(name) == self.trt.TensorIOMode.INPUT]
        if set(takes) != set(inputs):
            raise Failure("refused", f"inputs {', '.join(inputs) or 'none'}: expected {', '.join(takes)}")
        held = []
        try:
            for name in takes:
                if not self.context.set_input_shape(name, tuple(inputs[name]["shape"])):
                    raise Failure("refused", self.log.told(f"input {name} of shape {inputs[name]['shape']} is outside the profile"))
                data = bytes.fromhex(inputs[name]["bytes"])
                held.append(self.placed(name, len(data)))
                self.device.fill(held[-1], data)
            outputs = []
            for name in (name for name in self.names if name not in inputs):
                shape = list(self.context.get_tensor_shape(name))
                size = 4
                for part in shape:
                    size *= part
                held.append(self.placed(name, size))
                outputs.append((name, shape, size, held[-1]))
            if not self.context.execute_async_v3(self.stream.value):
                raise Failure("refused", self.log.told("it did not run"))
            self.device.call("cuStreamSynchronize", self.stream)
            return [{"name": name, "shape": shape, "bytes": self.device.read(at, size).hex()} for name, shape, size, at in outputs]
        finally:
            for address in held:
                self.device.free(address)

    def placed(self, name, size):
        address = self.device.allocate(size)
        self.context.set_tensor_address(name, address.value)
        return address


def jobs():
    """Lines of stdin; its end ends the process, whatever it is doing."""
    lines = queue.Queue()

    def read():
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def main():
    # What libraries print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = None
    for job in jobs():
        try:
            if job["task"] == "build":
                answer = {"ok": build(job)}
            elif job["task"] == "load":
                engine = Engine(job)
                answer = {"ok": engine.about()}
            else:
                answer = {"ok": engine.run(job)}
        except Failure as failure:
            answer = {"error": {"kind": failure.kind, "why": str(failure)}}
        except Exception as error:
            answer = {"error": {"kind": "refused", "why": f"{type(error).__name__}: {error}"}}
        print(json.dumps(answer), file=answers, flush=True)


main()
