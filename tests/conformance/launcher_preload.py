"""Scripts that `enn run` forks from a process that has imported torch, beside torchrun 2.11: the same results, exit codes and messages."""

import json
import os
import subprocess

import _preload_programs as programs
from _both_launchers import ENN, OURS, THEIRS, Run, finish, main, same, start

FLAGS = ["--standalone", "--nproc-per-node", "2"]


def run(who, base, program, flags=(), variables=None, name=None):
    """The program under one launcher; ours forks its workers."""
    folder = base / (name or who)
    folder.mkdir()
    (folder / "program.py").write_text(program)
    preload = ["--preload", "torch"] if who == OURS else []
    return finish(who, folder, start(who, folder, [*preload, *FLAGS, *flags, "program.py"], variables))


def both(base, program):
    """The program under both launchers."""
    return run(THEIRS, base, program), run(OURS, base, program)


def starts(ours):
    """Whether each worker of a run was forked, and the warnings of the run."""
    events = [json.loads(line) for path in (ours.folder.parent / "runs").rglob("events.jsonl") for line in path.read_text().splitlines()]
    forked = [event.get("forked", False) for event in events if event["event"] == "worker_started"]
    return forked, [event["message"] for event in events if event["event"] == "warned"]


def forked(ours, workers=2):
    found, warnings = starts(ours)
    assert found == [True] * workers, f"{found}\n{warnings}\n{ours}"


def trained(base, program):
    """What each rank said, under both launchers."""
    theirs, ours = both(base, program)
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    forked(ours)
    said = same(theirs, ours, Run.said)
    assert len(said) == 2, said
    return said


def case_ddp_with_a_snapshot(base):
    # Torchrun does not come back from this failure every time: an undisturbed run is the measure.
    said = []
    for name, variables, workers in (("whole", {}, 2), ("failed", {"FAILS": "1"}, 4)):
        ours = run(OURS, base, programs.SNAPSHOT, ["--max-restarts", "1"], variables, name)
        assert ours.code == 0, ours
        forked(ours, workers)
        said.append(ours.said())
    whole, failed = said
    assert failed[0]["first"] == 3 and failed[0]["restart"] == "1" and whole[0]["first"] == 0, said
    assert {each["weights"] for each in (*whole.values(), *failed.values())} == {whole[0]["weights"]}, said


def case_fsdp2_with_dcp(base):
    said = trained(base, programs.DCP)
    assert len({weights for rank in said.values() for weights in rank}) == 1, said


def case_loaders_with_workers(base):
    said = trained(base, programs.LOADER)
    assert len({weights for rank in said.values() for weights in rank.values()}) == 1, said


def case_compiled(base):
    assert all(rank["compiled"] >= 1 for rank in trained(base, programs.COMPILED).values())


def case_random_numbers_differ_between_workers_and_runs(base):
    drawn = []
    for name in ("one", "two"):
        ours = run(OURS, base, programs.SEEDS, name=name)
        assert ours.code == 0, ours
        forked(ours)
        drawn += ours.said().values()
    seeds, numbers = {seed for seed, _, _ in drawn}, {number for _, number, _ in drawn}
    assert len(numbers) == 4, drawn
    # Where an executed torch has a fixed number for its seed, so has a forked one.
    assert len(seeds) in (1, 4), drawn


def case_one_warm_server_serves_different_programs(base):
    sockets = base / "sockets"
    sockets.mkdir()
    warm = {"XDG_RUNTIME_DIR": str(sockets), "ENN_WARM": "1"}
    programmed = [("whole", programs.SNAPSHOT, {}, 2), ("failed", programs.SNAPSHOT, {"FAILS": "1"}, 4), ("loaded", programs.LOADER, {}, 2),
                  ("one", programs.SEEDS, {}, 2), ("two", programs.SEEDS, {}, 2)]
    said = {}
    try:
        for name, program, variables, count in programmed:
            ours = run(OURS, base, program, ["--max-restarts", "1"], {**warm, **variables}, name)
            assert ours.code == 0, ours
            forked(ours, count)
            said[name] = ours.said()
        told = subprocess.run([ENN[0], "warm", "status", "--json"], env={**os.environ, **warm}, check=True, capture_output=True, text=True)
    finally:
        subprocess.run([ENN[0], "warm", "stop"], env={**os.environ, **warm}, check=True, capture_output=True)
    servers = json.loads(told.stdout)["servers"]
    assert [each["server"]["runs"] for each in servers] == [len(programmed)], told.stdout
    trained = [*said["whole"].values(), *said["failed"].values()]
    assert len({each["weights"] for each in trained}) == 1 and said["failed"][0]["first"] == 3, said
    assert len({weights for rank in said["loaded"].values() for weights in rank.values()}) == 1, said
    assert len({number for name in ("one", "two") for _, number, _ in said[name].values()}) == 4, said


def case_a_variable_that_is_set_before_the_import_counts(base):
    theirs, ours = both(base, programs.ENVIRONMENT)
    assert theirs.code == ours.code == 0, f"{theirs}\n{ours}"
    assert same(theirs, ours, Run.said) == {0: 2, 1: 2}
    told = [message for message in starts(ours)[1] if "OMP_NUM_THREADS" in message and "import" in message]
    assert len(told) == 1, starts(ours)


def case_a_variable_that_is_set_after_the_import_is_too_late_as_ever(base):
    assert trained(base, programs.LATE) == {0: 1, 1: 1}
    told = [message for message in starts(run(OURS, base, programs.LATE, name="again"))[1] if "import" in message]
    assert not told, told


def case_an_exception_ends_as_under_torchrun(base):
    theirs, ours = both(base, programs.EXCEPTION)
    assert theirs.code == ours.code == 1, f"{theirs}\n{ours}"
    forked(ours)

    def traceback(run):
        lines = run.err.splitlines()
        end = next(index for index, line in enumerate(lines) if line.endswith("RuntimeError: the cause"))
        return [line.split("]:", 1)[-1].strip() for line in lines[end - 5:end + 1]]

    left, right = traceback(theirs), traceback(ours)
    assert [line.replace("torchrun", "enn") for line in left] == right, f"{left}\n{right}"


if __name__ == "__main__":
    main(globals())
