"""How long a device takes from one kernel of a graph to the next, by what other streams of the process were given before.

    _streams.py a:kernel b:kernel                   # two more streams; each time 40 of what they are given
    _streams.py a:kernel b:kernel:1 b:kernel:2
    _streams.py own:kernel a:graph a:peer a:word b:graph a:kernel:1

`own` is the stream of the graph, `default` the legacy one, and any other name a stream of that name. What they are given: kernel, graph
(of one kernel), product (cuBLAS), copy (within the device, which a kernel makes), memset, peer (a copy to device 1), word (written to
memory of the host and waited for). One line after each: µs from kernel to kernel.

A probe, not a bench: it has no limit. Needs one GPU, two for `peer`, and PyTorch.
"""

import ctypes
import sys
import time

import torch

KERNELS = 2000
TIMES = 40
COPY_BYTES = 1 << 24
# Lower is more urgent; a step of ours runs on an urgent stream.
URGENT, PLAIN = -1, 0
NOT_BLOCKING = 1

driver = ctypes.CDLL("libcuda.so.1")


def check(status: int, what: str) -> None:
    """Ends with what the driver refused."""
    if status != 0:
        sys.exit(f"{what}: CUDA error {status}")


def stream(priority: int) -> torch.cuda.Stream:
    """A stream of the process's own, outside PyTorch's pools."""
    made = ctypes.c_void_p()
    check(driver.cuStreamCreateWithPriority(ctypes.byref(made), NOT_BLOCKING, priority), "stream")
    return torch.cuda.ExternalStream(made.value)


class Probe:
    """A graph of tiny kernels on its own stream, and what the others are given."""

    def __init__(self) -> None:
        self.numbers = torch.zeros(1024, device="cuda")
        self.large = [torch.zeros(COPY_BYTES // 4, device="cuda") for _ in range(2)]
        self.word = torch.zeros(16, dtype=torch.int32).pin_memory()
        self.streams = {"own": stream(URGENT), "default": torch.cuda.default_stream()}
        self.factors = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
        torch.cuda.set_stream(self.streams["own"])
        self.numbers.add_(1)
        torch.cuda.synchronize()
        self.graph, self.single = self.recorded(KERNELS), self.recorded(1)

    def recorded(self, kernels: int) -> torch.cuda.CUDAGraph:
        """A graph of so many kernels, each behind the last."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.streams["own"]):
            for _ in range(kernels):
                self.numbers.add_(1)
        return graph

    def microseconds(self) -> float:
        """From kernel to kernel: the best of a few."""
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            self.graph.replay()
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begun)
        return 1e6 * best / KERNELS

    def give(self, name: str, what: str, times: int) -> None:
        """Gives a stream something, so many times, and waits for it."""
        if name not in self.streams:
            self.streams[name] = stream(PLAIN)
        given = self.streams[name]
        raw, address = ctypes.c_void_p(given.cuda_stream), ctypes.c_uint64(self.word.data_ptr())
        with torch.cuda.stream(given):
            for turn in range(times):
                if what == "kernel":
                    self.numbers.add_(1)
                elif what == "graph":
                    self.single.replay()
                elif what == "product":
                    torch.mm(self.factors, self.factors)
                elif what == "copy":
                    self.large[1].copy_(self.large[0], non_blocking=True)
                elif what == "memset":
                    check(driver.cuMemsetD8Async(ctypes.c_uint64(self.numbers.data_ptr()), 0, ctypes.c_size_t(4096), raw), what)
                elif what == "peer":
                    torch.empty_like(self.large[0], device="cuda:1").copy_(self.large[0], non_blocking=True)
                elif what == "word":
                    check(driver.cuStreamWriteValue32_v2(raw, address, ctypes.c_uint32(turn), 0), what)
                    check(driver.cuStreamWaitValue32_v2(raw, address, ctypes.c_uint32(turn), 0), what)
                else:
                    sys.exit(f"{what}: expected kernel, graph, product, copy, memset, peer or word")
        torch.cuda.synchronize()


def main() -> None:
    """Step by step."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    probe = Probe()
    print(f"{'at first':24} {probe.microseconds():.3f}")
    for step in sys.argv[1:]:
        name, what, times = [*step.split(":"), str(TIMES)][:3]
        probe.give(name, what, int(times))
        print(f"{step:24} {probe.microseconds():.3f}", flush=True)


if __name__ == "__main__":
    main()
