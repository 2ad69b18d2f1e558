"""The programs of launcher_scripts.py: each writes what it has to say into the folder $OUT, named by rank."""

HEAD = """
import json, os, sys, time
from pathlib import Path
RANK = os.environ["RANK"]
def say(value, name=None):
    path = Path(os.environ["OUT"]) / f"{name or 'result'}.{RANK}"
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(value))
    os.replace(beside, path)
"""

TRAIN = HEAD + """
import hashlib, torch, torch.distributed as dist
torch.set_num_threads(1)
def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()
def batches():
    for step in range(5):
        generator = torch.Generator().manual_seed(100 * step + int(RANK))
        yield torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)
def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
def train(net, backward=lambda loss: loss.backward()):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        backward(torch.nn.functional.mse_loss(net(x), y))
        optimizer.step()
"""

DDP = TRAIN + """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(model())
train(net)
say({"weights": digest(net.module.parameters()), "world": dist.get_world_size()})
dist.destroy_process_group()
"""

FSDP2 = TRAIN + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
net = model()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in [net[0], net[2], net]:
    fully_shard(layer, mesh=mesh)
train(net)
say({"weights": digest([p.full_tensor() for p in net.parameters()]), "sharded": [list(p.to_local().shape) for p in net.parameters()]})
# PyTorch 2.11 sometimes aborts where such a process ends, under either launcher: a thread of its own is still running.
dist.barrier()
os._exit(0)
"""

ACCELERATE = TRAIN + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
net, optimizer = accelerator.prepare(net, optimizer)
for x, y in batches():
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(net(x), y))
    optimizer.step()
say({"weights": digest(accelerator.unwrap_model(net).parameters()), "processes": accelerator.num_processes,
     "kind": str(accelerator.distributed_type), "local": accelerator.local_process_index})
accelerator.end_training()
"""

RECORD = HEAD + """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    say(os.environ["TORCHELASTIC_ERROR_FILE"])
    if RANK == "1":
        raise KeyError("the root cause of it all")
    time.sleep(60)
main()
"""

ENVIRONMENT = HEAD + """
say(dict(os.environ))
"""

PATHS = HEAD + """
say({"argv": sys.argv[1:], "name": __name__, "script": os.path.basename(sys.argv[0])})
"""

RUN_PATH_FAILS = HEAD + """
say(os.environ["TORCHELASTIC_ERROR_FILE"])
raise ValueError("not today")
"""

RESTARTS = HEAD + """
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
say({name: os.environ[name] for name in ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "RANK", "WORLD_SIZE")}, count)
if int(count) < 2:
    if RANK == "0":
        for rank in range(int(os.environ["WORLD_SIZE"])):
            while not (Path(os.environ["OUT"]) / f"{count}.{rank}").exists():
                time.sleep(0.01)
        sys.exit(3)
    time.sleep(60)
"""

SIGNALS = HEAD + """
import signal
def handler(number, frame):
    say(signal.Signals(number).name, "signal")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
    signal.signal(number, handler)
say("ready")
while True:
    time.sleep(1)
"""

PLUG_IN = """
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
def create(params):
    print("a plug-in was asked", flush=True)
    backend, store = create_backend(params)
    made = create_handler(store, backend, params)
    made.get_backend = lambda: params.backend
    return made
def handler():
    return create
"""

DEAF = HEAD + """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("ready")
while True:
    time.sleep(1)
"""

STANDARD_INPUT = HEAD + """
import stat
say({"read": sys.stdin.read(), "pipe": stat.S_ISFIFO(os.fstat(0).st_mode), "session": os.getsid(0) == os.getpid()})
"""

TERMINAL = HEAD + """
try:
    controls = os.open("/dev/tty", os.O_RDWR) >= 0
except OSError:
    controls = False
size = os.get_terminal_size()
say({"terminals": [os.isatty(fd) for fd in range(3)], "size": list(size), "controls": controls})
print("on standard output")
print("on standard error", file=sys.stderr)
breakpoint()
print("after the breakpoint")
"""

FILE_TIMER = HEAD + """
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=30, scope="left"):
    pass
say("left in time")
with timer.expires(after=1, scope="stuck"):
    time.sleep(60)
say("nobody ended it")
"""
