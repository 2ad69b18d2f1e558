# Of builders and runners alike: TensorRT itself, its log, and the device. Device memory is the driver's, so that nothing else is needed.
import ctypes

MAJOR = (10, 11)
SAID_MAX = 8


class Missing(Exception):
    pass


class Refused(Exception):
    pass


class GaveUp(Exception):
    """In words of TensorRT's."""


def tensorrt():
    try:
        import tensorrt as trt
    except Exception as error:
        raise Missing(f"{sys.executable} cannot import tensorrt: {error}") from None
    if trt.__version__.split(".")[0] not in map(str, MAJOR):
        raise Missing(f"{sys.executable} has TensorRT {trt.__version__}, expected {MAJOR[0]} or {MAJOR[1]}")
    versions["tensorrt"] = trt.__version__
    return trt


def told(task):
    """Runs a task, and says in one line what is missing or refused."""
    try:
        task()
    except Missing as why:
        say({"unavailable": str(why)})
    except Refused as why:
        say({"refused": str(why)})
    except GaveUp as why:
        print(why)
        say({"gave_up": str(why)})


def logger(trt):
    """A logger that keeps the last errors, which TensorRT tells nobody else."""

    class Log(trt.ILogger):
        def __init__(self):
            trt.ILogger.__init__(self)
            self.said = []

        def log(self, severity, text):
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                self.said = [*self.said, text][-SAID_MAX:]

        def told(self, otherwise):
            said, self.said = self.said, []
            return "; ".join(said) or otherwise

    return Log()


class Device:
    """The first GPU through the driver's own library, in the context that TensorRT uses."""

    def __init__(self, library):
        try:
            self.driver = ctypes.CDLL(library)
        except OSError as error:
            raise Missing(f"no NVIDIA driver: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))
        self.device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            kind = Missing if name.startswith(("cuInit", "cuDevice", "cuCtx")) else Refused
            raise kind(f"{name} of the NVIDIA driver gave {code}")

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


