"""The tools: what each of them starts, and what it needs."""

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VARIANTS = HERE / "variants"
ENVS = Path(os.environ.get("ENN_PEER_ENVS") or ROOT / "target" / "envs")
RESTARTS_MAX = 20


@dataclass
class Job:
    """One training: its folder, the arguments of the script, and how many workers and spares it has."""

    folder: Path
    arguments: list[str]
    workers: int
    spares: int
    device: str
    processes: list[subprocess.Popen] = field(default_factory=list)
    kept: list = field(default_factory=list)

    def start(self, name: str, command: list[str], variables: dict[str, str]) -> None:
        """Starts a process with the environment of this one, changed by `variables`."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ENN_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"} | variables
        with open(self.folder / f"{name}.log", "w") as log, open(self.folder / f"{name}.out", "w") as out:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=out, stderr=log, cwd=self.folder, start_new_session=True)
            )


class Tool:
    """A tool without options, and what it is called. `first_counted` is the number of the newcomer's step, from 1, in which all take part."""

    name = ""
    variant = ""
    # The folder of its packages below `ENVS`, and what is imported from there.
    package = ""
    imports = ""
    first_counted = 1
    # Whether spares are started behind the workers, so that the training is held until they are ready.
    has_spares = False
    setup = ""

    def missing(self) -> str:
        """Returns why the tool cannot run here; nothing if it can."""
        tried = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import {self.imports}"], env=self.environment(), capture_output=True, text=True, check=False
        )
        return (tried.stderr.splitlines() or ["?"])[-1] if tried.returncode else ""

    def version(self) -> str:
        """Returns the version of the tool's package."""
        code = f"from importlib.metadata import version; print(version({self.distribution!r}))"
        done = subprocess.run([sys.executable, "-c", code], env=self.environment(), capture_output=True, text=True, check=False)
        return done.stdout.strip() or "?"

    def environment(self) -> dict[str, str]:
        """Returns the environment of a process of the tool."""
        paths = [str(ENVS / self.package)] if self.package else []
        return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])}

    def variables(self) -> dict[str, str]:
        return {"PYTHONPATH": self.environment()["PYTHONPATH"]}

    def launch(self, job: Job) -> None:
        raise NotImplementedError

    def is_ready(self, job: Job) -> bool:
        """Returns whether the spares of all kills are ready."""
        return True

    def script(self, job: Job) -> list[str]:
        return [str(VARIANTS / self.variant), *job.arguments]


def torchrun(job: Job, *options: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", *options, f"--max-restarts={RESTARTS_MAX}"]


def free_port() -> int:
    """Returns a port that nobody listens on, nor on the two behind it."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
        with socket.socket() as second, socket.socket() as third:
            try:
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 2))
            except OSError:
                continue
        return port


class Plain(Tool):
    """The script without any tool, which all parameters may be compared with."""

    name = "plain"
    variant = "plain.py"
    imports = "torch"
    distribution = "torch"

    def launch(self, job: Job) -> None:
        command = [*torchrun(job, "--standalone", f"--nproc-per-node={job.workers}"), *self.script(job)]
        job.start("torchrun", command, self.variables())


class Torchrun(Plain):
    name = "torchrun"
    variant = "with_torchrun.py"
    setup = "torchrun --standalone --max-restarts; rank 0 writes a checkpoint with torch.save"


class LmResiliency(Torchrun):
    name = "lm-resiliency"
    variant = "with_lm_resiliency.py"
    package = "lm-resiliency"
    imports = "lm_resiliency"
    distribution = "lm-resiliency"
    setup = "enable_resiliency() with GEMINI's checkpoints in memory, at a peer and in a folder, no fault detection; under torchrun"


class Nvrx(Tool):
    """Each rank, and each reserve rank, is a process of its own: torchrun would end all of them with the first one that dies. The key-value
    stores live in this program, as with a scheduler's, so that the death of rank 0 is survived, too."""

    name = "NVRx in-process"
    variant = "with_nvrx.py"
    package = "nvrx"
    imports = "nvidia_resiliency_ext.inprocess"
    distribution = "nvidia-resiliency-ext"
    interval = "1"
    setup = "inprocess.Wrapper, one process for each rank and reserve rank, its own defaults (intervals of 1 s); the checkpoint of torchrun's variant"

    def launch(self, job: Job) -> None:
        import torch.distributed as dist

        port = free_port()
        world = job.workers + job.spares
        for number in (port, port + 1):
            job.kept.append(dist.TCPStore("127.0.0.1", number, is_master=True, wait_for_workers=False))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        # As its page on known issues says.
        shared |= {"NVRX_INTERVAL": self.interval, "TORCH_CPP_LOG_LEVEL": "error", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_NVLS_ENABLE": "0"}
        for rank in range(world):
            ranks = {"RANK": str(rank)}
            # With a local rank it asks NVML about the device before it restarts, and gives up where there is none: a reserve rank is given one
            # that a rank has.
            ranks |= {"LOCAL_RANK": str(rank % job.workers)} if job.device == "cuda" else {}
            job.start(f"rank-{rank}", [sys.executable, *self.script(job)], self.variables() | shared | ranks)


class NvrxFast(Nvrx):
    name = "NVRx in-process, 0.1 s"
    interval = "0.1"
    setup = "the same with intervals, and the wait for further faults, of 0.1 s"


class Torchft(Tool):
    """Each rank is a replica group of one, started by a torchrun of its own."""

    name = "TorchFT"
    variant = "with_torchft.py"
    package = "torchft"
    imports = "torchft, torchft._torchft"
    distribution = "torchft"
    # A process that is healed takes no part in its first step.
    first_counted = 2
    replicas_min = 1
    setup = "a lighthouse (min_replicas 1), each rank a replica group under a torchrun of its own; the survivors go on alone until it is back"

    def launch(self, job: Job) -> None:
        port = free_port()
        lighthouse = str(ENVS / self.package / "bin" / "torchft_lighthouse")
        flags = ["--min_replicas", str(self.least(job)), "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
        job.start("lighthouse", [sys.executable, lighthouse, *flags, "--bind", f"127.0.0.1:{port}"], self.variables())
        shared = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "TORCHFT_MIN_REPLICAS": str(self.least(job))}
        shared |= {"NUM_REPLICA_GROUPS": str(job.workers)}
        for rank in range(job.workers):
            command = [*torchrun(job, "--standalone", "--nproc-per-node=1"), *self.script(job)]
            visible = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
            device = {"CUDA_VISIBLE_DEVICES": visible[rank] if visible else str(rank)} if job.device == "cuda" else {}
            job.start(f"replica-{rank}", command, self.variables() | shared | {"REPLICA_GROUP_ID": str(rank)} | device)

    def least(self, job: Job) -> int:
        return self.replicas_min


class TorchftAll(Torchft):
    name = "TorchFT, all replicas"
    setup = "the same with min_replicas equal to the number of ranks: the survivors wait"

    def least(self, job: Job) -> int:
        return job.workers


class Enn(Tool):
    name = "ENN"
    variant = "with_enn.py"
    imports = "enn.elastic"
    has_spares = True
    setup = "enn run --on-failure replace --spares --preload torch; no checkpoints"

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def version(self) -> str:
        done = subprocess.run([sys.executable, "-c", "import enn; print(enn.__version__)"], env=self.environment(), capture_output=True, text=True)
        return done.stdout.strip()

    def missing(self) -> str:
        if not Path(self.binary()).exists():
            return f"{self.binary()} was not found: run `make build-all`"
        return super().missing()

    def binary(self) -> str:
        if "ENN_SUPERVISOR" in os.environ:
            return os.environ["ENN_SUPERVISOR"]
        directory = os.environ.get("ENN_BIN_DIR") or str(ROOT / "target" / "release")
        return str(Path(directory) / "enn")

    def launch(self, job: Job) -> None:
        if Path(self.binary()).name == "agent_under_test":
            self._launch_supervisor(job)
            return
        flags = ["--standalone", "--json", "--preload=torch", f"--runs-dir={job.folder}", "--on-failure=replace", f"--spares={job.spares}"]
        flags += [f"--nproc-per-node={job.workers}", f"--max-restarts={RESTARTS_MAX}"]
        job.start("supervisor", [self.binary(), "run", *flags, *self.script(job)], self.variables() | {"PYTHON_EXEC": sys.executable})

    def _launch_supervisor(self, job: Job) -> None:
        """Runs the supervisor of `enn run` by itself, with workers that are executed."""
        worker = job.folder / "worker.sh"
        worker.write_text(f"#!/bin/sh\nexec {' '.join([sys.executable, *self.script(job)])}\n")
        worker.chmod(0o700)
        (job.folder / "run").mkdir()
        numbers = [str(job.workers), str(RESTARTS_MAX), "5"]
        options = ["policy=reform", "contract=script", f"spares={job.spares}"]
        job.start("supervisor", [self.binary(), str(job.folder / "run"), *numbers, str(worker), *options], self.variables())

    def is_ready(self, job: Job) -> bool:
        text = (job.folder / "supervisor.out").read_text()
        return text.count('"event":"spare_ready"') >= job.spares


TOOLS = [Torchrun(), Nvrx(), NvrxFast(), Torchft(), TorchftAll(), LmResiliency(), Enn()]


def lines_changed(tool: Tool) -> int:
    """Returns how many lines a variant adds to the plain script or removes from it, but for blank ones, comments and indentation."""
    command = [shutil.which("diff") or "diff", "-w", "-U0", str(VARIANTS / "plain.py"), str(VARIANTS / tool.variant)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[2:]
    changed = [line[1:].strip() for line in lines if line[0] in "+-"]
    return sum(bool(line) and not line.startswith("#") for line in changed)
