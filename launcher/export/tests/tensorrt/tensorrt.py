"""Stands in for TensorRT: writes down what is asked of it, and misbehaves on command. It computes 2x for every output.

How it behaves is in behaviour.json beside it; what was asked goes to calls.jsonl.
"""

import ctypes
import enum
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TOLD = json.loads((HERE / "behaviour.json").read_text())
BEHAVIOUR = TOLD["behaviour"]
__version__ = TOLD["version"]
float32, int64 = "float32", "int64"

if BEHAVIOUR == "broken":
    raise ImportError("libnvinfer.so.10: cannot open shared object file")


def called(name, *arguments):
    with open(HERE / "calls.jsonl", "a") as calls:
        calls.write(json.dumps([name, *arguments]) + "\n")


called("process", os.getpid())


class ILogger:
    Severity = enum.IntEnum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING"])


class NetworkDefinitionCreationFlag(enum.IntEnum):
    EXPLICIT_BATCH, STRONGLY_TYPED = range(2)


BuilderFlag = enum.Enum("BuilderFlag", ["TF32", "STRICT_NANS"] + (["FP16"] if __version__.startswith("10.") else []))


class TensorIOMode(enum.Enum):
    INPUT, OUTPUT = range(2)


class Named:
    def __init__(self, name):
        self.name = name


class Network:
    num_inputs = 1

    def get_input(self, at):
        return Named(TOLD.get("input", "x"))


class Profile:
    def set_shape(self, name, least, best, most):
        called("set_shape", name, least, best, most)


class Config:
    def clear_flag(self, flag):
        called("clear_flag", flag.name)

    def set_flag(self, flag):
        called("set_flag", flag.name)

    def add_optimization_profile(self, profile):
        return -1 if BEHAVIOUR == "profile" else 0


class Builder:
    def __init__(self, log):
        if BEHAVIOUR == "no device":
            log.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 100")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self.log = log

    def create_network(self, flags):
        called("create_network", flags)
        return Network()

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return Profile()

    def build_serialized_network(self, network, config):
        print("[TRT] chatter", flush=True)
        print("[TRT] more of it", file=sys.stderr, flush=True)
        if BEHAVIOUR == "hang":
            time.sleep(3600)
        if BEHAVIOUR == "die":
            print("[TRT] Assertion failed: wisdom", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if BEHAVIOUR == "exit":
            os._exit(9)
        if BEHAVIOUR == "no engine":
            self.log.log(ILogger.Severity.WARNING, "it is getting late")
            self.log.log(ILogger.Severity.ERROR, "could not find any implementation for node m.linear_0")
            return None
        return memoryview(b"an engine")


class Error:
    def desc(self):
        return "Assertion failed: inputs.size() == 3"

    def node_name(self):
        return "m.linear_0"

    def node_operator(self):
        return "Gemm"


class OnnxParser:
    num_errors = 1

    def __init__(self, network, log):
        pass

    def parse_from_file(self, path):
        called("parse", path)
        assert Path(path).exists()
        return BEHAVIOUR != "parse"

    def get_error(self, at):
        return Error()


class Context:
    def __init__(self):
        self.at, self.shape = {}, None

    def set_input_shape(self, name, shape):
        called("set_input_shape", name, list(shape))
        self.shape = shape
        return shape[0] <= 7

    def get_tensor_shape(self, name):
        return self.shape

    def set_tensor_address(self, name, address):
        self.at[name] = address

    def execute_async_v3(self, stream):
        count = 1
        for size in self.shape:
            count *= size
        numbers = lambda name: (ctypes.c_float * count).from_address(self.at[name])
        for name in ("double", "again"):
            for at, value in enumerate(numbers("x")):
                numbers(name)[at] = 2 * value
        return True


class Engine:
    num_io_tensors = 3

    def get_tensor_name(self, at):
        return ["x", "double", "again"][at]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name == "x" else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return int64 if BEHAVIOUR == "integers" and name == "x" else float32

    def create_execution_context(self):
        return Context()


class Runtime:
    def __init__(self, log):
        self.log = log

    def deserialize_cuda_engine(self, plan):
        if plan != b"an engine":
            self.log.log(ILogger.Severity.ERROR, "the engine plan file is not compatible with this version of TensorRT")
            return None
        return Engine()
