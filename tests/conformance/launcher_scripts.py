"""The contract of torchrun, seen from scripts: the same flags under both launchers, the same words from the script."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import _launcher_programs as programs
from _both_launchers import OURS, RUN_SECONDS_MAX, THEIRS, Run, both, finish, main, on_terminal, same, start, torchrun_flags

# What differs between any two runs: ports, folders, names made up for one run.
VARIES = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "OUT", "PWD", "OLDPWD", "_"}
# What enn adds, and what torchrun's own Python leaves behind in its workers.
OURS_ONLY = re.compile("ENN_")
THEIRS_ONLY = re.compile("KMP_|TORCHINDUCTOR_|TRITON_|PYTORCH_NVML")
# Flags that not every release has.
NEEDS = {
    "virtual_local_rank": "--virtual-local-rank",
    "signals": "--signals-to-handle",
    "shutdown_timeout": "--shutdown-timeout",
    "log_line_prefix": "--log-line-prefix-template",
    "print_completion": "--print-completion",
}


def unknown_variables():
    """Variables of workers that came with a flag which this torchrun does not have."""
    return set() if "--signals-to-handle" in torchrun_flags() else {"TORCHELASTIC_SIGNALS_TO_HANDLE"}


def case_record(base):
    """A decorated main that raises: the same fields in the error file, and enn shows type and message."""
    theirs, ours = both(base, programs.RECORD, ["--standalone", "--nproc-per-node", "2", "--log-dir", str(base / "logs")], ["program.py"])
    same(theirs, ours, lambda run: run.code)
    for run in (theirs, ours):
        run.error = json.loads(Path(run.said()[1]).read_text())
    same(theirs, ours, lambda run: sorted(run.error["message"]["extraInfo"]) + sorted(run.error["message"]))
    same(theirs, ours, lambda run: run.error["message"]["message"])
    for word in ("KeyError", "the root cause of it all", "rank 1"):
        assert word in ours.err, f"{word} is not shown\n{ours}"
    same(theirs, ours, lambda run: [Path(path).name for path in run.said().values()])


def case_environment(base):
    """Every variable of every worker, but for ports and paths."""
    flags = ["--nproc-per-node", "2", "--max-restarts", "3", "--role", "trainer", "--rdzv-id", "name-of-it", "--master-port"]
    for number, extra in enumerate([{}, {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}]):
        here = base / str(number)
        here.mkdir()
        theirs, ours = both(here, programs.ENVIRONMENT, [*flags, "29717"], ["program.py"], extra)
        assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
        for rank in (0, 1):
            left, right = theirs.said()[rank], ours.said()[rank]
            keep = lambda variables, without: {k: v for k, v in variables.items() if k not in VARIES - {"MASTER_PORT"} and not without.match(k)}
            left, right = keep(left, THEIRS_ONLY), keep(right, OURS_ONLY)
            left.pop("ENN_RUNS")
            right = {k: v for k, v in right.items() if k not in unknown_variables()}
            differ = {k: (left.get(k), right.get(k)) for k in {*left, *right} if left.get(k) != right.get(k)}
            assert not differ, f"(torchrun, enn): {differ}"
            assert right["MASTER_PORT"] == "29717" and right["OMP_NUM_THREADS"] == extra.get("OMP_NUM_THREADS", "1")


def case_standalone_environment(base):
    theirs, ours = both(base, programs.ENVIRONMENT, ["--standalone"], ["program.py"])
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    # Both name this host in their own way, and a run by chance.
    without = VARIES | {"MASTER_ADDR", "TORCHELASTIC_RUN_ID", "ENN_RUNS"} | unknown_variables()
    left, right = theirs.said()[0], ours.said()[0]
    names = lambda variables, other: {k for k in variables if k not in without and not other.match(k)}
    assert names(left, THEIRS_ONLY) == names(right, OURS_ONLY), names(left, THEIRS_ONLY) ^ names(right, OURS_ONLY)


def case_ways_to_name_the_program(base):
    """A script, --run-path, -m, --no-python: the same arguments, the same __name__; what follows the program is its own."""
    own = ["--nproc-per-node", "9", "-m", "--", "x", "--no-python"]
    ways = {"script": ["program.py"], "run_path": ["--run-path", "program.py"], "module": ["-m", "program"]}
    for way, words in ways.items():
        here = base / way
        here.mkdir()
        theirs, ours = both(here, programs.PATHS, ["--nproc-per-node", "1", "--standalone", *words], own)
        assert theirs.code == ours.code == 0, f"{way}\n{theirs}\n{ours}"
        said = same(theirs, ours, Run.said)
        assert said[0] == {"argv": own, "name": "__main__", "script": "program.py"}, said
    here = base / "no_python"
    here.mkdir()
    shell = '#!/bin/sh\nprintf \'"%s %s %s"\' "$RANK" "$1" "$2" > "$OUT/result.$RANK"\n'
    runs = []
    for who in (THEIRS, OURS):
        folder = here / who
        folder.mkdir()
        (folder / "go.sh").write_text(shell)
        (folder / "go.sh").chmod(0o755)
        runs.append(finish(who, folder, start(who, folder, ["--standalone", "--nproc-per-node=2", "--no-python", "./go.sh", "-a", "--b"])))
    assert same(*runs, Run.said) == {0: "0 -a --b", 1: "1 -a --b"}


def case_separator(base):
    """`--` right behind the script is the parser's, later ones and those behind another are the script's."""
    for number, words in enumerate([["program.py", "--", "a"], ["--", "program.py", "--", "a"], ["program.py", "b", "--", "a"]]):
        here = base / str(number)
        here.mkdir()
        theirs, ours = both(here, programs.PATHS, ["--standalone", *words])
        assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
        same(theirs, ours, Run.said)


def case_run_path_error_file(base):
    """A function that torchrun starts has its exception recorded without @record; --run-path is one."""
    theirs, ours = both(base, programs.RUN_PATH_FAILS, ["--standalone", "--log-dir", str(base / "logs"), "--run-path", "program.py"])
    same(theirs, ours, lambda run: run.code)
    for run in (theirs, ours):
        run.error = json.loads(Path(run.said()[0]).read_text())["message"]
    assert "not today" in same(theirs, ours, lambda run: run.error["message"])
    same(theirs, ours, lambda run: sorted(run.error["extraInfo"]))


def case_virtual_local_rank(base):
    for number, extra in enumerate([{}, {"CUDA_VISIBLE_DEVICES": "3,5"}]):
        here = base / str(number)
        here.mkdir()
        flags = ["--standalone", "--nproc-per-node", "2", "--virtual-local-rank"]
        theirs, ours = both(here, programs.ENVIRONMENT, flags, ["program.py"], extra)
        pick = lambda run: {rank: [v.get("LOCAL_RANK"), v.get("CUDA_VISIBLE_DEVICES"), v["RANK"]] for rank, v in run.said().items()}
        said = same(theirs, ours, pick)
        assert said[1][:2] == (["0", "1"] if not extra else ["0", "5"]), said


def case_restarts(base):
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    runs = []
    for who, more in ((THEIRS, []), (OURS, ["--retry-early"])):
        folder = base / who
        folder.mkdir()
        (folder / "program.py").write_text(programs.RESTARTS)
        runs.append(finish(who, folder, start(who, folder, [*flags, *more, "program.py"])))
    assert same(*runs, lambda run: run.code) == 0
    for attempt in range(3):
        said = same(*runs, lambda run: run.said(str(attempt)))
        assert len(said) == 2 and {v["TORCHELASTIC_RESTART_COUNT"] for v in said.values()} == {str(attempt)}, said
    assert same(*runs, lambda run: run.said("3")) == {}


def case_restarts_used_up(base):
    """Without a restart left: 1, as torchrun; the worker's own code with --propagate-exit."""
    theirs, ours = both(base, "import sys; sys.exit(7)", ["--standalone"], ["program.py"])
    assert same(theirs, ours, lambda run: run.code) == 1
    folder = base / "own"
    folder.mkdir()
    (folder / "program.py").write_text("import sys; sys.exit(7)")
    run = finish(OURS, folder, start(OURS, folder, ["--standalone", "--propagate-exit", "program.py"]))
    assert run.code == 7, run


def case_signals(base):
    """A signal to the launcher reaches the workers; the launcher ends."""
    for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGUSR2, "SIGUSR2")):
        flags = ["--standalone", "--nproc-per-node", "2", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR2"]
        runs = []
        for who in (THEIRS, OURS):
            folder = base / name / who
            folder.mkdir(parents=True)
            (folder / "program.py").write_text(programs.SIGNALS)
            child = start(who, folder, [*flags, "program.py"])
            deadline = time.monotonic() + 60
            while len(list((folder / "out").glob("result.[01]"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            child.send_signal(number)
            runs.append(finish(who, folder, child))
        assert same(*runs, lambda run: run.said("signal")) == {0: name, 1: name}
        assert [run.code for run in runs] == [1, 128 + number], runs


def case_standard_input(base):
    """Workers have the launcher's standard input: a script comes from there, and so does what a worker of any rank reads."""
    said = 'import os; open(os.environ["OUT"] + "/result.0", "w").write(\'"from stdin"\')'
    runs = []
    for who in (THEIRS, OURS):
        (base / who).mkdir()
        child = start(who, base / who, ["--standalone", "-"], stdin=subprocess.PIPE)
        out, err = child.communicate(said, timeout=RUN_SECONDS_MAX)
        runs.append(Run(who, base / who / "out", child.returncode, out, err))
    assert same(*runs, Run.said) == {0: "from stdin"}, runs
    for who in (THEIRS, OURS):
        folder = base / f"{who}-ranks"
        folder.mkdir()
        (folder / "program.py").write_text(programs.STANDARD_INPUT)
        child = start(who, folder, ["--standalone", "--nproc-per-node", "2", "program.py"], stdin=subprocess.PIPE)
        out, err = child.communicate("the words", timeout=RUN_SECONDS_MAX)
        run = Run(who, folder / "out", child.returncode, out, err)
        said = run.said()
        assert run.code == 0 and sorted(said) == [0, 1] and {word["pipe"] for word in said.values()} == {True}, run
        assert "".join(said[rank]["read"] for rank in (0, 1)) == "the words", run
        assert all(word["session"] for word in said.values()), f"a worker leads a session\n{run}"


def case_terminal(base):
    """On a terminal all three streams of every worker are one, of the size of the window, and a debugger works."""
    runs = []
    for who in (THEIRS, OURS):
        folder = base / who
        folder.mkdir()
        (folder / "program.py").write_text(programs.TERMINAL)
        runs.append(on_terminal(who, folder, ["--standalone", "program.py"], b"(Pdb) ", b"p 6 * 7\nc\n"))
    said = same(*runs, Run.said)
    assert said[0] == {"terminals": [True, True, True], "size": [77, 33], "controls": False}, runs
    for run in runs:
        assert run.code == 0 and "42" in run.out and "after the breakpoint" in run.out, run
        assert run.out.index("on standard error") > run.out.index("on standard output"), f"the order is kept\n{run}"


def case_file_timer(base):
    """TORCHELASTIC_ENABLE_FILE_TIMER: workers find a pipe for their timers, and one whose timer expires is ended."""
    for who in (THEIRS, OURS):
        folder = base / who
        folder.mkdir()
        (folder / "program.py").write_text(programs.FILE_TIMER)
        run = finish(who, folder, start(who, folder, ["--standalone", "program.py"], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}))
        assert run.said() == {0: "left in time"}, run
        # torchrun's agent ends itself together with the worker.
        assert run.code == (1 if who == OURS else -signal.SIGKILL), run
        if who == OURS:
            assert "timer" in run.err and "SIGKILL" in run.err, run


def case_variables_without_effect(base):
    """What torchrun's agent reads and enn does not honour is said."""
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHELASTIC_HEALTH_CHECK_PORT": "12345"}
    (base / "program.py").write_text("")
    run = finish(OURS, base, start(OURS, base, ["--standalone", "program.py"], variables))
    assert run.code == 0, run
    for name, value in variables.items():
        assert f"{name}={value} is not honoured" in run.err, run


def case_local_rank_in_arguments(base):
    """${local_rank} in an argument is the worker's own, and $$ a dollar sign."""
    own = ["--device=cuda:${local_rank}", "$local_rank", "$$x", "${other}"]
    theirs, ours = both(base, programs.PATHS, ["--standalone", "--nproc-per-node", "2", "program.py"], own)
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    said = same(theirs, ours, Run.said)
    assert said[1]["argv"] == ["--device=cuda:1", "1", "$x", "${other}"], said


def case_plug_in(base):
    """A rendezvous back-end of the entry points torchrun.handlers: enn hands the command to torch's own torchrun, words and all."""
    site = base / "site"
    (site / "plug-1.0.dist-info").mkdir(parents=True)
    (site / "plug-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (site / "plug-1.0.dist-info" / "entry_points.txt").write_text("[torchrun.handlers]\nmine = plug:handler\n")
    (site / "plug.py").write_text(programs.PLUG_IN)
    variables = {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    flags = ["--rdzv-backend", "mine", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "2"]
    theirs, ours = both(base, programs.PATHS, [*flags, "program.py"], ["--x", "$$"], variables)
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    assert same(theirs, ours, Run.said)[1]["argv"] == ["--x", "$"]
    assert "handed to torch's own torchrun" in ours.err and "a plug-in was asked" in theirs.out and "a plug-in was asked" in ours.out, ours


def stopped(who, folder, flags, variables=None):
    """Seconds from SIGTERM to the end of a launch whose worker does not heed it."""
    folder.mkdir()
    (folder / "program.py").write_text(programs.DEAF)
    child = start(who, folder, [*flags, "program.py"], variables)
    deadline = time.monotonic() + 60
    while not (folder / "out" / "result.0").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    begun = time.monotonic()
    child.send_signal(signal.SIGTERM)
    finish(who, folder, child)
    return time.monotonic() - begun


def case_shutdown_timeout(base):
    """--shutdown-timeout, its variable and torch's own: the time before a worker is killed that does not heed SIGTERM."""
    ways = [(["--shutdown-timeout", "2"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "40"}), ([], {"PET_SHUTDOWN_TIMEOUT": "2"}),
            ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "2"})]  # fmt: skip
    for number, (flags, variables) in enumerate(ways):
        seconds = [stopped(who, base / f"{who}-{number}", ["--standalone", *flags], variables) for who in (THEIRS, OURS)]
        # torchrun needs seconds of its own to end.
        assert 1.9 < seconds[0] < 20 and 1.9 < seconds[1] < 5, (flags, variables, seconds)


def case_log_line_prefix(base):
    """--log-line-prefix-template and its variables: host, role and ranks, the same words before each line."""
    template = "${hostname}|${role_name}|${rank}|${local_rank}|$$|${other}> "
    for number, (flags, variables) in enumerate([
        (["--log-line-prefix-template", template], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "no "}),
        ([], {"PET_LOG_LINE_PREFIX_TEMPLATE": template}), ([], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}),
        (["--log-line-prefix-template", ""], {}),
    ]):  # fmt: skip
        here = base / str(number)
        here.mkdir()
        args = ["--standalone", "--nproc-per-node", "2", "--tee", "3", *flags, "program.py"]
        # In one piece: torchrun joins lines of workers that come in several.
        runs = both(here, "import os; os.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())", args, (), variables)
        said = same(*runs, lambda run: sorted(line for line in run.out.splitlines() if line.endswith(("rank 0", "rank 1"))))
        assert len(said) == 2, runs


def case_print_completion(base):
    """--print-completion: a script for the shell on standard output, and code 0. torchrun needs a package for it."""
    for shell in ("bash", "zsh", "tcsh"):
        folder = base / shell
        folder.mkdir()
        run = finish(OURS, folder, start(OURS, folder, ["--print-completion", shell]))
        assert run.code == 0 and "nproc-per-node" in run.out, run
    theirs = base / "theirs"
    theirs.mkdir()
    run = finish(THEIRS, theirs, start(THEIRS, theirs, ["--print-completion", "bash"]))
    assert run.code == 0 and "nproc" in run.out or "shtab" in run.out + run.err, run


def case_workers_by_core(base):
    """--nproc-per-node cpu: enn counts the cores of the affinity mask, as newer releases of torchrun do; older ones count all."""
    [core, *_] = os.sched_getaffinity(0)
    program = "import json, os; open(os.environ['OUT'] + '/result.0', 'w').write(os.environ['LOCAL_WORLD_SIZE'])"
    counts = {}
    for who in (THEIRS, OURS):
        folder = base / who
        folder.mkdir()
        (folder / "program.py").write_text(program)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        child = start(who, folder, ["--standalone", "--nproc-per-node", "cpu", "program.py"], {"CUDA_VISIBLE_DEVICES": "-1"})
        os.sched_setaffinity(0, before)
        counts[who] = finish(who, folder, child).said()[0]
    assert counts[OURS] == 1 and counts[THEIRS] in (1, os.cpu_count()), counts
    print(f"       torchrun counts {'the mask' if counts[THEIRS] == 1 else 'the machine'}", flush=True)


if __name__ == "__main__":
    main(globals(), NEEDS)
