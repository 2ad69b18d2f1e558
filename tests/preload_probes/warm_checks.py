"""Checks of the warm server itself: who may use it, how long it lives, which runs it serves."""

import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import time

import cases
import client
import warm_client
from checks import SHORT_SECONDS, SMALL, gone, null_streams

SLEEP = "import time; time.sleep(60)"


class Warm:
    """A warm server of a few small modules, as a context, and runs of small programs."""

    def __init__(self, python, preload=SMALL, variables=None, **other):
        self.environment = {**cases.BASE_ENVIRONMENT, **(variables or {})}
        self.server = warm_client.WarmServer(python, self.environment, preload, **other)
        self.null = null_streams()

    def __enter__(self):
        status = self.server.status()
        assert "status" in status, status
        return self

    def __exit__(self, *unused):
        os.close(self.null[0])
        self.server.stop()

    def join(self, text="pass", cwd="/tmp", leave=False, **other):
        """A run of a program; raises where it is refused."""
        args = other.pop("args", ["-u", "-c", text])
        environment = {**self.environment, **other.pop("variables", {})}
        run = warm_client.JoinedRun(self.server, args, environment, cwd, leave, **other)
        if "ready" not in (run.answer or {}):
            run.stop()
            raise client.Refused(run.answer and run.answer["refuse"])
        run.start = lambda descriptors=self.null: run.fork(args, {**environment, **cases.RANK}, descriptors)
        return run

    def ended(self, text, **other):
        """The exit code of one worker of a run of its own."""
        run = self.join(text, **other)
        worker = run.start()
        worker.go()
        code = worker.ended_by(SHORT_SECONDS)
        run.stop()
        return code

    def refusal(self, **other):
        """Why a run is refused; None when it is not."""
        try:
            self.join(**other).stop()
            return None
        except client.Refused as why:
            return str(why)


def status_and_stop(python, options):
    """What the server says of itself; stop ends it, removes its folder, and leaves runs alone."""
    found = []
    with Warm(python) as warm:
        run = warm.join("import time; time.sleep(1); raise SystemExit(4)")
        worker = run.start()
        worker.go()
        status = warm.server.status()["status"]
        want = {"pid": warm.server.process.pid, "argv0": python, "modules": SMALL.split(","), "torch": None, "runs": 1,
                "running": 1, "idle": float(warm_client.IDLE_SECONDS)}
        found += [f"{name} is {status.get(name)!r}" for name, value in want.items() if status.get(name) != value]
        found += [] if status["started"] <= status["used"] <= time.time() else [f"the times are {status}"]
        found += [] if (warm.server.hook / "ready").exists() else ["there is no file ready"]
        if warm.server.ask(b"stop") != {"stopped": warm.server.process.pid} or warm.server.ended() != 0:
            found.append("the server was not stopped")
        found += ["the folder stays"] if warm.server.hook.exists() else []
        code = worker.ended_by(SHORT_SECONDS)
        found += [] if code == 4 else [f"a worker whose server was stopped ended with {code}"]
        run.stop()
    return found


def another_user(python, options):
    """A process of another user is turned away by the server, not only by the folder's mode."""
    if os.getuid() != 0:
        return []
    with Warm(python) as warm:
        for path, mode in ((warm.server.folder, 0o755), (warm.server.hook, 0o755), (warm.server.path, 0o666)):
            os.chmod(path, mode)
        child = os.fork()
        if child == 0:
            code = 2
            try:
                os.setuid(65534)
                connection = warm.server.connect()
                connection.settimeout(5)
                connection.sendall(client.frame_bytes(b"status"))
                code = 0 if connection.recv(1) == b"" else 1
            except ConnectionError:
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = [] if code == 0 else [f"the other user's process ended with {code}"]
        return found + ([] if "status" in warm.server.status() else ["the server serves no longer"])


def ends_by_itself(python, options):
    """Without runs for a while, or with the process it is bound to, the server ends and takes its folder with it."""
    found = []
    with Warm(python, idle=1) as warm:
        run = warm.join(SLEEP)
        time.sleep(1.3)
        found += [] if warm.server.process.poll() is None else ["the server ended while a run lived"]
        run.stop()
        code = warm.server.ended(5)
        found += [] if code == 0 and not warm.server.hook.exists() else [f"idle: exit code {code}, or a folder left"]
    other = subprocess.Popen(["sleep", "60"])
    with Warm(python, until=other.pid) as warm:
        run = warm.join("import time; time.sleep(.5); raise SystemExit(4)")
        worker = run.start()
        worker.go()
        other.kill()
        other.wait()
        code = warm.server.ended(5)
        found += [] if code == 0 and not warm.server.hook.exists() else [f"until: exit code {code}, or a folder left"]
        code = worker.ended_by(SHORT_SECONDS)
        found += [] if code == 4 else [f"a worker of that server ended with {code}"]
        run.stop()
    server = warm_client.WarmServer(python, cases.BASE_ENVIRONMENT, SMALL, until=other.pid)
    code = server.ended()
    server.stop()
    return found + ([] if code == 0 else [f"the process is gone before the start: exit code {code}"])


def bad_clients(python, options):
    """Silent, broken and vanished clients do not end the server, keep nobody waiting, and are dropped."""
    found = []
    with Warm(python) as warm:
        silent = [warm.server.connect() for _ in range(3)]
        warm.server.connect().close()
        for data in (b"\1", struct.pack("<I", 5) + b"ab", struct.pack("<I", 1 << 30) + b"x", client.frame_bytes(b""),
                     client.frame_bytes(b"dance"), client.frame_bytes(b"join"),
                     client.frame_bytes(b"join\0" b"2\0\0" b"1"), client.frame_bytes(b"join\0" b"0\0\0" b"1\0x"),
                     client.frame_bytes(b"status") + b"more", os.urandom(99)):
            connection = warm.server.connect()
            connection.sendall(data)
            silent.append(connection)
        began = time.monotonic()
        found += [] if warm.ended("raise SystemExit(4)") == 4 else ["the server serves no longer"]
        found += ["a silent client kept a run waiting"] if time.monotonic() - began > 1.5 else []
        for connection in silent:
            connection.settimeout(5)
            try:
                while connection.recv(1 << 12):
                    pass
            except ConnectionError:
                pass
            except socket.timeout:
                found.append("a client that says nothing useful was not dropped")
            connection.close()
        many = [warm.server.connect() for _ in range(100)]
        found += [] if "status" in warm.server.status() else ["100 silent clients keep the server from answering"]
        for connection in many:
            connection.close()
        time.sleep(0.5)
        count = len(os.listdir(f"/proc/{warm.server.process.pid}/fd"))
        found += [f"the server has {count} descriptors open"] if count > 6 else []
    return found


def runs_refused(python, options):
    """What does not suit the server is refused, with a sentence that says why."""
    found = []
    with Warm(python, variables={"SLURM_JOB_ID": "7", "PYTHONPATH": "/opt/a"}) as warm:
        for words, other in (
                ("options", dict(args=["-c", "pass"])), ("options", dict(args=["-u", "-O", "-c", "pass"])),
                ("standard input", dict(args=["-u", "-"])), ("standard input", dict(args=["-u"])),
                ("interpreter", dict(argv0="/usr/bin/python9")),
                ("SLURM_JOB_ID", dict(variables={"SLURM_JOB_ID": "8"})),
                ("HOME", dict(variables={"HOME": "/elsewhere"})),
                ("LD_LIBRARY_PATH", dict(variables={"LD_LIBRARY_PATH": "/"})),
                ("OMP_NUM_THREADS", dict(variables={"OMP_NUM_THREADS": "3"})),
                ("PYTHONPATH", dict(variables={"PYTHONPATH": "/opt/b"})), ("prepare", dict(cwd="/no/such/folder"))):
            why = warm.refusal(**other)
            found += [] if why and words in why and why.isprintable() else [f"{words}: {why}"]
        why = warm.refusal(variables={"MASTER_ADDR": "x", "ANYTHING": "1", "CUDA_VISIBLE_DEVICES": "1"})
        found += [] if why is None else [f"a run that suits is refused: {why}"]
    server = warm_client.WarmServer(python, {**cases.BASE_ENVIRONMENT, "PYTHONPATH": "/opt/a:"}, SMALL)
    answer = server.status()
    server.stop()
    return found + ([] if "PYTHONPATH" in answer.get("refuse", "") else [f"an empty part of PYTHONPATH: {answer}"])


def path_files(python, options):
    """A variable that a .pth file, or a module that it imports, may have read at the start."""
    found = []
    with tempfile.TemporaryDirectory() as home:
        version = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        folder = f"{home}/.local/lib/python{version}/site-packages"
        os.makedirs(folder)
        with open(folder + "/early.pth", "w") as file:
            file.write("import os; FOUND = os.environ.get('READ_BY_PTH')\nimport early_module\n")
        with open(folder + "/early_module.py", "w") as file:
            file.write("import os\nFOUND = os.getenv('READ_BY_MODULE')\n")
        with Warm(python, variables={"HOME": home}) as warm:
            for name in ("READ_BY_PTH", "READ_BY_MODULE"):
                why = warm.refusal(variables={name: "1"})
                found += [] if why and name in why else [f"{name}: {why}"]
            why = warm.refusal(variables={"READ_BY_NOBODY": "1"})
            found += [] if why is None else [f"a run that suits is refused: {why}"]
    return found


def small_kernel(python, options):
    """Without CONFIG_CHECKPOINT_RESTORE the server serves all the same."""
    change = ("procfs.py", "PR_SET_MM = 35", "PR_SET_MM = 3535")
    with Warm(python, change=change) as warm:
        code = warm.ended("raise SystemExit(4)")
    return [] if code == 4 else [f"the worker ended with {code}"]


def surroundings(python, options):
    """Workers have the limits and priorities of their launcher; without one the run is refused."""
    found = []
    limit = resource.getrlimit(resource.RLIMIT_STACK)
    text = "import os, resource; print(resource.getrlimit(resource.RLIMIT_STACK)[0], os.nice(0), " \
           "open('/proc/self/oom_score_adj').read())"

    def set_oom(value):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(value))

    with Warm(python) as warm:
        try:
            set_oom(123)
            resource.setrlimit(resource.RLIMIT_STACK, (7 << 20, limit[1]))
            os.setpriority(os.PRIO_PROCESS, 0, 3)
            reading, writing = os.pipe()
            run = warm.join(text)
            worker = run.start([warm.null[0], writing, 2])
            os.close(writing)
            worker.go()
            with os.fdopen(reading) as file:
                seen = file.read().split()
            worker.ended_by(SHORT_SECONDS)
            run.stop()
            found += [] if seen == [str(7 << 20), "3", "123"] else [f"the worker has {seen}"]
        finally:
            resource.setrlimit(resource.RLIMIT_STACK, limit)
            if os.getuid() == 0:
                os.setpriority(os.PRIO_PROCESS, 0, 0)
                set_oom(0)
        why = warm.refusal(parent=1 << 22)
        found += [] if why and "could not prepare the run" in why else [f"a launcher that is not there: {why}"]
    return found


def control_group(python, options):
    """Workers are in the control group of their launcher, where root may make one."""
    found = []
    with open("/proc/self/cgroup") as file:
        own = {line.split(":")[1]: line.split(":", 2)[2].strip() for line in file}
    roots = (("", "/sys/fs/cgroup"), ("", "/sys/fs/cgroup/unified"), ("pids", "/sys/fs/cgroup/pids"))
    base = next((root + own[name].rstrip("/") for name, root in roots
                 if name in own and os.access(root + own[name].rstrip("/") + "/cgroup.procs", os.W_OK)), None)
    if base is None:
        return found
    group = f"{base}/enn-warm-{os.getpid()}"

    def enter(folder):
        with open(folder + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    with Warm(python) as warm:
        os.mkdir(group)
        try:
            enter(group)
            name = os.path.basename(group)
            code = warm.ended(f"raise SystemExit({name!r} not in open('/proc/self/cgroup').read())")
            found += [] if code == 0 else [f"the worker ended with {code}"]
        finally:
            enter(base)
            end = time.monotonic() + 5
            while os.path.exists(group) and time.monotonic() < end:
                try:
                    os.rmdir(group)
                except OSError:
                    time.sleep(0.05)
    return found


def changed_files(python, options):
    """A module that is edited under the server, and a module beside the script: both are refused."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/mine.py"
        with open(path, "w") as file:
            file.write("VALUE = 1\n")
        with Warm(python, SMALL + ",mine", {"PYTHONPATH": folder}) as warm:
            run = warm.join("import mine; raise SystemExit(mine.VALUE)")
            code = warm.ended("import mine; raise SystemExit(mine.VALUE)")
            found += [] if code == 1 else [f"the module gives {code}"]
            os.mkdir(folder + "/work")
            with open(folder + "/work/json.py", "w") as file:
                file.write("\n")
            why = warm.refusal(cwd=folder + "/work")
            found += [] if why and "json" in why else [f"a module beside the script: {why}"]
            with open(path, "a") as file:
                file.write("VALUE = 22\n")
            why = warm.refusal()
            found += [] if why and path in why else [f"an edited module: {why}"]
            try:
                run.start()
                found.append("an edited module, in a run that was there before: forked")
            except client.Refused as why:
                found += [] if path in str(why) else [f"an edited module, in a run: {why}"]
            run.stop()
    return found


def self_check(python, options):
    """Where a forked worker is not what an executed one is, or the layout is unknown, nothing is served."""
    found = []
    for change, words in (
            (("become.py", "    os.umask(request.umask)\n", ""), "the umask"),
            (("run_server.py", "sys.argv[:] = [command.script", "sys.argv[:] = ['x'"), "sys.argv"),
            (("config.py", "put(self.argv, len(argv))", "put(self.command + 16, 0)"), "self-check failed"),
            (("config.py", "words = memory", "words = () and memory"), "layout of PyConfig in Python 3."),
            (("config.py", "pythonapi._Py_GetConfig", "pythonapi._Py_GetNothing"), "does not show its configuration")):
        server = warm_client.WarmServer(python, cases.BASE_ENVIRONMENT, SMALL, change=change)
        with server.connect() as early:
            early.sendall(client.frame_bytes(b"status"))
            answer = client.receive(early, SHORT_SECONDS)
        code = server.ended()
        if words not in (answer or {}).get("refuse", "") or code != 0 or server.hook.exists():
            found.append(f"{change[0]}: {answer}, exit code {code} {server.said()}")
        server.stop()
    return found


def health(python, options):
    """A server whose imports leave something that cannot be forked says so and is gone."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/bad.py", "w") as file:
            file.write("import os\nRANK = os.environ.get('RANK')\n")
        server = warm_client.WarmServer(python, {**cases.BASE_ENVIRONMENT, "PYTHONPATH": folder}, "bad")
        answer = server.status()
        code = server.ended()
        found += [] if "RANK" in answer.get("refuse", "") and code == 0 and not server.hook.exists() else [
            f"{answer}, exit code {code}"]
        server.stop()
    return found


def descriptors_by_chance(python, options):
    """A descriptor that the server inherited from whoever started it is closed, and no worker has it."""
    reading, writing = os.pipe()
    with Warm(python, pass_fds=[writing]) as warm:
        os.close(writing)
        code = warm.ended("import os; raise SystemExit(len(os.listdir('/proc/self/fd')))")
        os.set_blocking(reading, False)
        ended = os.read(reading, 1) == b""
    os.close(reading)
    # Newer releases of libffi keep one.
    return [] if code in (4, 5) and ended else [f"the worker has {code} descriptors, the pipe is closed: {ended}"]


def endings(python, options):
    """How workers end is told by the run server, which keeps their numbers until the connection is closed."""
    found = []
    with Warm(python) as warm:
        for text, want in (("pass", 0), ("raise SystemExit(3)", 3), ("1/0", 1), ("import os; os._exit(255)", 255),
                           ("import os; os.kill(os.getpid(), 11)", -11), ("import os; os.kill(os.getpid(), 9)", -9),
                           ("import os; os.execvp('sh', ['sh', '-c', 'exit 9'])", 9)):
            code = warm.ended(text)
            found += [] if code == want else [f"{text}: {code}"]
        run = warm.join(SLEEP)
        worker = run.start()
        found += [] if worker.ending() is None else ["a worker that waits has ended"]
        worker.go()
        found += [] if worker.ending() is None else ["a worker that lives has ended"]
        os.kill(worker.pid, signal.SIGTERM)
        found += [] if gone(worker.pid) else ["a worker does not end"]
        time.sleep(1.2)
        with open(f"/proc/{worker.pid}/stat") as file:
            found += [] if " Z " in file.read() else ["the worker's number was given away"]
        again = [worker.ending() for _ in range(3)]
        found += [] if again == [{"signal": 15}] * 3 else [f"asked again: {again}"]
        worker.connection.close()
        end = time.monotonic() + 5
        while os.path.exists(f"/proc/{worker.pid}") and time.monotonic() < end:
            time.sleep(0.01)
        found += ["the worker is not reaped"] if os.path.exists(f"/proc/{worker.pid}") else []
        waiting, running = run.start(), run.start()
        running.go()
        for each in (waiting, running):
            each.connection.close()
            found += [] if gone(each.pid) else ["a worker whose connection was closed stays"]
        run.stop()
    return found


def several_runs(python, options):
    """Two runs at once, of different programs in different folders, with several workers each."""
    found = []
    with Warm(python) as warm, tempfile.TemporaryDirectory() as folder:
        text = "import os, sys; sys.exit(int(os.environ['RANK']) + {} + 100 * (os.getcwd() != {!r}))"
        runs = [warm.join(text.format(10, folder), cwd=folder), warm.join(text.format(20, "/"), cwd="/")]
        started = []
        for rank in range(4):
            for run, add in zip(runs, (10, 20)):
                args = ["-u", "-c", text.format(add, folder if add == 10 else "/")]
                worker = run.fork(args, {**warm.environment, "RANK": str(rank)}, warm.null)
                started.append((worker, rank + add))
        for worker, _ in reversed(started):
            worker.go()
        codes = [worker.ended_by(SHORT_SECONDS) for worker, _ in started]
        found += [] if codes == [want for _, want in started] else [f"exit codes {codes}"]
        status = warm.server.status()["status"]
        found += [] if (status["runs"], status["running"]) == (2, 2) else [f"{status}"]
        for run in runs:
            run.stop()
    return found


NAMES = {check.__name__.replace("_", " "): check for check in (
    status_and_stop, another_user, ends_by_itself, bad_clients, runs_refused, path_files, small_kernel, surroundings,
    control_group, changed_files, self_check, health, descriptors_by_chance, endings, several_runs)}
