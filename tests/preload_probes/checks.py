"""Checks of the server itself: leaks, orphans, refusals, garbage, what two workers share."""

import glob
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time

import cases
import client

SHORT_SECONDS = 10
SMALL = "json,random,logging"
# One name of each class of the environment key, and what a worker has that the server has not.
KEY = ("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHONOPTIMIZE", "PYTHONIOENCODING", "PYTHONPATH",
       "LD_PRELOAD_NOT", "LC_ALL", "LANG", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "OMP_NUM_THREADS", "GOMP_SPINCOUNT",
       "KMP_BLOCKTIME", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DNNL_VERBOSE", "ONEDNN_VERBOSE",
       "NPY_DISABLE_CPU_FEATURES", "TORCH_LOGS", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE",
       "TORCH_DISTRIBUTED_DEBUG",
       "TORCH_CPP_LOG_LEVEL",
       "PYTORCH_CUDA_ALLOC_CONF", "AOT_FX_GRAPH", "TRITON_CACHE_DIR", "NVRTC_X",
       "KINETO_LOG_LEVEL",
       "CI", "CXX", "LOGLEVEL", "NOISY_IMPORT_READS")
NOT_KEY = ("CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_BLOCKING_WAIT", "NCCL_DEBUG",
           "TORCHINDUCTOR_CACHE_DIR", "TZ", "TMPDIR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
           "ANYTHING")


def null_streams():
    """Three descriptors of /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    return [null, null, null]


class Small:
    """A server of a small program, as a context."""

    def __init__(self, python, text="pass", preload=SMALL, variables=None):
        self.args = ["-u", "-c", text]
        self.environment = {**cases.BASE_ENVIRONMENT, **(variables or {})}
        self.server = client.Server(python, self.args, self.environment, preload, "/")
        self.null = null_streams()

    def __enter__(self):
        assert "ready" in self.server.answer, self.server.answer
        return self

    def __exit__(self, *unused):
        os.close(self.null[0])
        self.code = self.server.stop()

    def fork(self, **other):
        environment = {**self.environment, **cases.RANK, **other.pop("variables", {})}
        return self.server.fork(self.args, environment, other.pop("descriptors", self.null), **other)

    def run(self, **other):
        """Starts a worker and returns its exit code."""
        worker = self.fork(**other)
        worker.go()
        return worker.ended_by(SHORT_SECONDS)


def gone(pid, seconds=SHORT_SECONDS):
    """Whether the process ends, or is a zombie, within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def reap():
    """Collects all children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def many_starts(python, options):
    """Starts workers one after the other; neither descriptors nor processes nor memory of the server may grow."""
    with Small(python, "import json") as small:
        pid = small.server.process.pid

        def state():
            with open(f"/proc/{pid}/status") as file:
                memory = [int(line.split()[1]) for line in file if line.startswith("VmRSS")][0]
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                children = file.read().split()
            return len(os.listdir(f"/proc/{pid}/fd")), children, memory
        for _ in range(20):
            small.run()
        before = state()
        ours = len(os.listdir("/proc/self/fd"))
        began = time.monotonic()
        codes = {small.run() for _ in range(options.starts)}
        seconds = (time.monotonic() - began) / options.starts
        after = state()
        found = [] if codes == {0} else [f"exit codes {codes}"]
        found += [f"descriptors {before[0]} became {after[0]}"] if before[0] != after[0] else []
        found += [f"children {after[1]}"] if after[1] else []
        found += [f"memory {before[2]} KiB became {after[2]}"] if after[2] > before[2] + 1024 else []
        found += ["descriptors of the client grew"] if len(os.listdir("/proc/self/fd")) != ours else []
    print(f"    {options.starts} starts, {seconds * 1000:.1f} ms from request to end")
    return found


def many_at_once(python, options):
    """Twenty requests are on their way at once; each gets its own worker, and no worker waits for another."""
    found = []
    with Small(python, "import os, sys; sys.exit(int(os.environ['RANK']))") as small:
        environment = {**small.environment, **cases.RANK}
        asked = [small.server.request(small.args, dict(environment, RANK=str(rank)), small.null) for rank in range(20)]
        workers = [client.Worker(client.receive(connection, SHORT_SECONDS)["pid"], connection) for connection in asked]
        for worker in reversed(workers):
            worker.go()
        codes = [worker.ended_by(SHORT_SECONDS) for worker in workers]
        found += [] if codes == list(range(20)) else [f"exit codes {codes}"]
        found += [] if len({worker.pid for worker in workers}) == 20 else ["two workers have one pid"]
        reap()
    return found


def time_to_first_line(python, options):
    """Measures, and never fails: from the request to the first line of the script."""
    with Small(python, "import os; os.write(1, b'x')") as small:
        times = []
        for _ in range(40):
            reading, writing = os.pipe()
            began = time.monotonic()
            worker = small.fork(descriptors=[small.null[0], writing, writing])
            worker.go()
            os.read(reading, 1)
            times.append(time.monotonic() - began)
            worker.ended_by(SHORT_SECONDS)
            os.close(reading)
            os.close(writing)
    times.sort()
    print(f"    request to first line: median {times[20] * 1000:.1f} ms, worst {times[-1] * 1000:.1f} ms; "
          f"server ready in {small.server.answer['ready']['seconds']} s")
    return []


def environment_key(python, options):
    """Each name of the key changed alone means a refusal; each late name does not."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/noisy_import.py", "w") as file:
            file.write("import os\nREAD = os.environ.get('NOISY_IMPORT_READS')\n")
        with Small(python, preload=SMALL + ",noisy_import", variables={"PYTHONPATH": folder}) as small:
            for name in KEY:
                try:
                    small.run(variables={name: "1"})
                    found.append(f"{name} differs and the worker was forked")
                except client.Refused as why:
                    if name not in str(why):
                        found.append(f"{name} differs and the refusal says: {why}")
            for name in NOT_KEY:
                try:
                    if small.run(variables={name: "1"}) != 0:
                        found.append(f"{name} differs and the worker failed")
                except client.Refused as why:
                    found.append(f"{name} differs and the worker was refused: {why}")
            small.environment["LANG"] = "C"
    return found


def other_requests(python, options):
    """What else is refused: another script, folder or interpreter; no descriptors."""
    found = []
    with Small(python) as small:
        environment = {**small.environment, **cases.RANK}
        tries = {
            "another script": dict(args=["-u", "-c", "1"]), "no option": dict(args=["-c", "pass"]),
            "another folder": dict(cwd="/tmp"), "another interpreter": dict(argv0="/usr/bin/python9"),
            "bytes that are no text": dict(args=["-u", "-c", "\udcff" * 5000]),
            "too few descriptors": dict(descriptors=small.null[:1]),
        }
        for name, changed in tries.items():
            args = changed.pop("args", small.args)
            descriptors = changed.pop("descriptors", small.null)
            try:
                small.server.fork(args, environment, descriptors, **changed)
                found.append(f"{name}: the worker was forked")
            except client.Refused as why:
                if str(why) in ("", "None") or len(str(why)) > 2100 or not str(why).isprintable():
                    found.append(f"{name}: the reason is {why}")
        if small.run() != 0:
            found.append("the server serves no longer")
    return found


def garbage(python, options):
    """Silent, broken and vanished requests do not end the server and do not keep others waiting."""
    found = []
    with Small(python) as small:
        control = small.server.control

        def send(data, descriptors=()):
            ours, theirs = socket.socketpair()
            socket.send_fds(control, [b"c"], [theirs.fileno()])
            theirs.close()
            if data:
                socket.send_fds(ours, [data], list(descriptors))
            return ours
        silent = [send(b"") for _ in range(3)]
        send(b"").close()
        kept = [send(data, small.null) for data in (
            b"\1", struct.pack("<I", 5) + b"ab", struct.pack("<I", 1 << 30) + b"x", struct.pack("<I", 3) + b"a\0b",
            struct.pack("<I", 0), struct.pack("<I", 4) + b"1\0x\0", struct.pack("<I", 2) + b"1\0more",
            os.urandom(4096))]
        send(struct.pack("<I", 40) + b"1", small.null).close()
        control.sendall(b"c")
        control.sendall(b"garbage")
        began = time.monotonic()
        if small.run() != 0:
            found.append("the server serves no longer")
        if time.monotonic() - began > 1.5:
            found.append("a silent request kept another one waiting")
        for connection in silent:
            try:
                client.receive(connection, 5)
            except socket.timeout:
                found.append("a silent connection was not closed")
        for connection in kept + silent:
            connection.close()
        time.sleep(2.2)
        if small.run() != 0:
            found.append("the server serves no longer after the limit")
        size = len(os.listdir(f"/proc/{small.server.process.pid}/fd"))
        if size > 6:
            found.append(f"the server has {size} descriptors open")
    return found


def edited_modules(python, options):
    """A preloaded module of the user's own that is edited is imported anew."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/noisy_import.py"
        with open(path, "w") as file:
            file.write("VALUE = 1\n")
        with Small(python, "import noisy_import", SMALL + ",noisy_import", {"PYTHONPATH": folder}) as small:
            if small.run() != 0:
                found.append("the worker failed")
            with open(path, "a") as file:
                file.write("VALUE = 22\n")
            try:
                small.run()
                found.append("the module was edited and the worker was forked")
            except client.Refused as why:
                found += [] if path in str(why) else [f"the refusal says: {why}"]
    return found


def old_interpreters(python, options):
    """An interpreter that is too old, where there is one beside this, answers so and runs nothing."""
    found = []
    for version in ("3.8", "3.9"):
        for other in glob.glob(f"{os.path.dirname(os.path.dirname(os.path.dirname(python)))}/{version}.*/bin/python"):
            for what in ("probe", "serve"):
                server = client.Server(other, ["-u", "-c", "print('ran')"], cases.BASE_ENVIRONMENT, "json", what=what)
                answer = (server.answer or {}).get("probe", server.answer) or {}
                if "expected 3.10" not in (answer.get("refuse") or ""):
                    found.append(f"{other}: {server.answer} {server.said()}")
                code = server.stop()
                found += [f"{other} ended with {code}"] if code != 0 else []
    return found


def small_kernel(python, options):
    """Without CONFIG_CHECKPOINT_RESTORE the command line is written over the old one."""
    text = "import sys; data = open('/proc/self/cmdline', 'rb').read().split(b'\\0'); " \
           "names = open('/proc/self/environ', 'rb').read(); " \
           "sys.exit(0 if data[-2] == b'worker' and b'ENN_' not in names and b'PATH' in names else 1)"
    change = ("procfs.py", "    # Not mmap.mmap", "    return False\n    # Not mmap.mmap")
    args = ["-u", "-c", text, "server"]
    server = client.Server(python, args, cases.BASE_ENVIRONMENT, SMALL, "/", change=change)
    null = null_streams()
    worker = server.fork([*args[:-1], "worker"], {**cases.BASE_ENVIRONMENT, **cases.RANK}, null)
    worker.go()
    code = worker.ended_by(SHORT_SECONDS)
    os.close(null[0])
    server.stop()
    return [] if code == 0 else [f"the worker ended with {code}"]


def orphans(python, options):
    """Whoever ends at whatever step: no process stays behind."""
    found = []
    # The server is killed while a worker runs: the worker lives on.
    with Small(python, "import time; time.sleep(1); raise SystemExit(5)") as small:
        worker = small.fork()
        worker.go()
        small.server.process.kill()
        small.server.process.wait()
        code = worker.ended_by(SHORT_SECONDS)
        found += [] if code == 5 else [f"a worker whose server was killed ended with {code}"]
    # The server is killed between the fork and the go: the worker waits for the launcher, and goes when it is told.
    with Small(python, "raise SystemExit(6)") as small:
        one, other = small.fork(), small.fork()
        small.server.process.kill()
        small.server.process.wait()
        one.go()
        code = one.ended_by(SHORT_SECONDS)
        found += [] if code == 6 else [f"a worker whose server was killed before the go ended with {code}"]
        other.connection.close()
        found += [] if gone(other.pid) else ["a worker that nobody wants stays"]
    # The launcher closes the connection instead of the go.
    with Small(python, "import time; time.sleep(60)") as small:
        worker = small.fork()
        worker.connection.shutdown(socket.SHUT_RDWR)
        code = worker.ended_by(SHORT_SECONDS)
        found += [] if code not in (0, "still running") else [f"a worker without a go ended with {code}"]
        # A request from somebody who is not the parent.
        try:
            small.fork(parent=1)
            found.append("a worker for another parent was forked")
        except client.Refused:
            pass
        reap()
    found += launcher_killed(python)
    # The control socket's end ends the server.
    small = Small(python)
    small.server.stop()
    code = small.server.process.returncode
    found += [] if code == 0 else [f"the server ended with {code}"]
    reap()
    return found


LAUNCHER = """
import os, sys
sys.path.insert(0, {folder!r})
import checks, client
client.subreaper()
small = checks.Small({python!r}, "import time; time.sleep(60)")
step = {step!r}
workers = []
if step in ("forked", "running"):
    workers.append(small.fork())
if step == "running":
    workers[0].go()
if step == "asked":
    small.server.request(small.args, dict(small.environment), small.null)
print(small.server.process.pid, *[worker.pid for worker in workers], flush=True)
os.read(0, 1)
"""


def launcher_killed(python):
    """A launcher that is killed takes its server and its workers with it."""
    found = []
    for step in ("ready", "asked", "forked", "running"):
        text = LAUNCHER.format(folder=str(client.HERE), python=python, step=step)
        process = subprocess.Popen(["python3", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pids = [int(pid) for pid in process.stdout.readline().split()]
        time.sleep(0.1)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        found += [f"launcher killed when {step}: process {pid} stays" for pid in pids if not gone(pid)]
        time.sleep(0.2)
        reap()
    return found


def middle_killed(python, options):
    """The middle process is killed while it forks: there is no reply, a refusal or a worker, and none stays."""
    found = []
    with Small(python, "import time; time.sleep(0.2)") as small:
        pid = small.server.process.pid
        for delay in range(40):
            connection = small.server.request(small.args, {**small.environment, **cases.RANK}, small.null)
            end = time.monotonic() + delay / 20000
            while time.monotonic() < end:
                pass
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                for child in file.read().split():
                    try:
                        os.kill(int(child), signal.SIGKILL)
                    except OSError:
                        pass
            try:
                answer = client.receive(connection, 3)
            except (socket.timeout, ConnectionError):
                answer = None
                found.append("no answer and no end within 3 seconds")
            connection.close()
            if answer and "pid" in answer and not gone(answer["pid"]):
                found.append("a worker without a go stays")
            reap()
        if small.run() != 0:
            found.append("the server serves no longer")
    return found


def what_workers_share(python, options):
    """Random numbers and keys of two workers of one server, and of two servers, are all different."""
    seen = []
    found = []
    text = (client.HERE / "randomness.py").read_text()
    seen_text = (client.HERE / "seen.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/seen.py", "w") as file:
            file.write(seen_text)
        for _ in range(2):
            with Small(python, text, client.PRELOAD.replace(",noisy_import", ""), {"PYTHONPATH": folder}) as small:
                for _ in range(2):
                    reading, writing = os.pipe()
                    worker = small.fork(descriptors=[small.null[0], writing, 2])
                    os.close(writing)
                    worker.go()
                    with os.fdopen(reading) as file:
                        seen.append(file.read().splitlines())
                    worker.ended_by(SHORT_SECONDS)
    for lines in zip(*seen):
        if len(set(lines)) != len(lines):
            found.append(f"two workers have the same: {lines[0]}")
    return found + ([] if len(seen[0]) == 6 else [f"the probe printed {seen[0]}"])


def probes(python, options):
    """The probe's answer, and interpreters that hide the hook."""
    found = []
    server = client.Server(python, ["-u", "-c", "pass"], cases.BASE_ENVIRONMENT, "json,no_such,xml.dom", what="probe")
    answer = server.answer["probe"]
    if answer["found"] != {"json": True, "no_such": False, "xml.dom": True} or answer["refuse"] is not None:
        found.append(f"the probe answers {answer}")
    found += [] if server.stop() == 0 else ["the probe did not end with 0"]
    for name, args, variables in (("coverage", [], {"COVERAGE_PROCESS_START": "x"}),
                                  ("a tracer", ["-X", "dev", "-i"], {})):
        server = client.Server(python, [*args, "-u", "-c", "pass"], {**cases.BASE_ENVIRONMENT, **variables}, "json",
                               what="probe")
        if not server.answer or not server.answer["probe"]["refuse"]:
            found.append(f"{name}: {server.answer}")
        server.stop()
    for args, variables in ((["-v"], {}), (["-X", "importtime"], {}), ([], {"PYTHONTRACEMALLOC": "1"})):
        server = client.Server(python, [*args, "-u", "-c", "pass"], {**cases.BASE_ENVIRONMENT, **variables}, "json",
                               what="probe")
        found += [] if (server.answer or {}).get("probe", {}).get("refuse") else [f"{args}: {server.answer}"]
        server.stop()
    for flag in ("-I", "-E", "-S"):
        server = client.Server(python, [flag, "-u", "-c", "pass"], cases.BASE_ENVIRONMENT, "json", what="probe")
        found += [] if server.answer is None else [f"{flag} answers {server.answer}"]
        server.stop()
    return found


def refusals_when_ready(python, options):
    """Imports after which no worker can be forked: threads, descriptors, handlers, children, RANK."""
    found = []
    for name, text, why in (
            ("thread", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
             "thread"),
            ("descriptor", "import os\nos.open('/etc/passwd', 0)", "/etc/passwd"),
            ("handler", "import signal\nsignal.signal(signal.SIGTERM, print)", "signals"),
            ("child", "import subprocess\nPROCESS = subprocess.Popen(['sleep', '1'])", "child"),
            ("rank", "import os\nRANK = os.environ.get('RANK')", "RANK"),
            ("stream", "import sys, io\nsys.stdout = io.StringIO()", "standard stream"),
            ("limit", "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "limit"),
            ("tracer", "import sys\nsys.setprofile(lambda *a: None)", "tracer")):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/bad_{name}.py", "w") as file:
                file.write(text + "\n")
            server = client.Server(python, ["-u", "-c", "pass"], {**cases.BASE_ENVIRONMENT, "PYTHONPATH": folder},
                                   f"json,bad_{name}")
            if why not in (server.answer or {}).get("refuse", ""):
                found.append(f"{name}: {server.answer} {server.said()}")
            server.stop()
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/bad.py", "w") as file:
            file.write("1 / 0\n")
        server = client.Server(python, ["-u", "-c", "pass"], {**cases.BASE_ENVIRONMENT, "PYTHONPATH": folder},
                               "no_such,bad,json")
        ready = (server.answer or {}).get("ready", {})
        missing = [each["name"] for each in ready.get("missing", [])]
        if missing != ["no_such", "bad"] or ready.get("modules") != ["json"]:
            found.append(f"missing modules: {server.answer} {server.said()}")
        server.stop()
    return found


def no_server_runs_the_script(python, options):
    """A server that fails at any place ends with 70 and never runs the script."""
    found = []
    for number in ("999", "x", ""):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**cases.BASE_ENVIRONMENT, "PYTHONPATH": str(client.HOOK), "ENN_FORKSERVER_WHAT": "serve",
                           "ENN_FORKSERVER_FD": number, "ENN_FORKSERVER_PRELOAD": "json",
                           "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run([python, "-c", f"open({folder + '/ran'!r}, 'w')"], env=environment,
                                  stderr=subprocess.PIPE)
            if done.returncode != 70 or os.path.exists(folder + "/ran") or b"Traceback" not in done.stderr:
                found.append(f"{number!r}: exit code {done.returncode}, {done.stderr[-200:]}")
    return found


def torch_seeds(python, options):
    """Two workers, and two servers, begin with different seeds; OMP_NUM_THREADS of a worker is looked at."""
    text = "import torch, numpy; print(torch.initial_seed(), torch.rand(1).item(), numpy.random.rand()); " \
           "print(len(__import__('os').listdir('/proc/self/fd')))"
    seen = []
    found = []
    for variables in ({"OMP_NUM_THREADS": "1"}, {}):
        # Without the variable numpy starts threads when it is imported, which end when a worker is forked.
        with Small(python, text, "torch", variables) as small:
            for _ in range(2):
                reading, writing = os.pipe()
                worker = small.fork(descriptors=[small.null[0], writing, 2])
                os.close(writing)
                worker.go()
                with os.fdopen(reading) as file:
                    seen.extend(file.readline().split())
                    found += [] if file.read() == "4\n" else ["a descriptor is left open"]
                worker.ended_by(client.TORCH_WAIT_SECONDS)
            for name in ("OMP_NUM_THREADS", "TORCH_LOGS"):
                try:
                    small.fork(variables={name: "2"})
                    found.append(f"{name} differs and the worker was forked")
                except client.Refused:
                    pass
    return found + ([] if len(seen) == len(set(seen)) == 12 else [f"seen: {seen}"])


NAMES = {check.__name__.replace("_", " "): check for check in (
    probes, environment_key, other_requests, garbage, what_workers_share, refusals_when_ready,
    no_server_runs_the_script, edited_modules, old_interpreters, small_kernel,
    orphans, middle_killed, many_at_once, many_starts, time_to_first_line, torch_seeds)}
