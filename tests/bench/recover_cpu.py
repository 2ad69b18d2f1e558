"""recover_cpu, recover_cpu_no_spare: from kill -9 of one of two CPU workers in the middle of training to the first step that all have
done since, in seconds; below 1 s with a spare. lost_work: steps done twice for one fault; at most 1.

Ours: `enn train --policy reform` with one spare and without. Peer: torchrun 2.11 with DistributedDataParallel on Gloo, which starts
again from the snapshot of the last epoch; how long it takes to be where it was is told beside.

recover_cpu_torchft: the same with a spare against TorchFT 0.2.0 (a lighthouse, two replica groups of one worker, Gloo), whose survivor
goes on alone until torchrun has started a new process that takes its state. recover_cpu_alone: until that survivor has begun a step
and done it, against ours that may go on with one worker of two. TorchFT needs its packages (`make torchft`, or ENN_TORCHFT); where they
are missing that is said, and these two are left out. A process of TorchFT that is healed takes no part in its first step, so that
its second is the one that all have done.

`recover_cpu.py [ROUNDS KILLS]`: runs of each kind, and kills in each. Needs ENN_PYTHON.
"""

import random
import statistics
import sys

import _record as record
import _watched as watched

ROUNDS, KILLS = map(int, sys.argv[1:3] or (2, 3))
# A restart may itself fail, when Gloo does not connect; the peer may try again.
RESTARTS_MAX = 100
LOST_STEPS_MAX = 1
# The training between two kills: some epochs' ends are near, some are not.
BETWEEN_S = (1.0, 4.0)
# How ours is started, by kind.
FLAGS = {"spare": ["--spares", "1"], "none": [], "alone": ["--workers", f"1:{watched.WORKERS}"]}


def recoveries(run: watched.Run, rng: random.Random) -> list[watched.Recovery]:
    """Kills again and again, when all are at work and some steps are done."""
    found = []
    for _ in range(KILLS):
        run.wait_prepared()
        run.rest(rng.uniform(*BETWEEN_S))
        run.wait_prepared()
        found.append(run.recover(rng.randrange(watched.WORKERS)))
        print(f"{run.name}: {found[-1]}", flush=True)
    return found


def told(run: watched.Enn) -> dict:
    """What the journal says of the same recoveries."""
    run.rest(2 * watched.JOURNAL_S)
    recovered = run.events("recovered")
    return {
        "seconds": [event["seconds"] for event in recovered],
        "lost_steps": [event["lost_steps"] for event in recovered],
        "from_checkpoint": sum(event["from_rank"] is None for event in recovered),
        "state_bytes": [event["bytes"] for event in run.events("state_received")],
    }


def measure(folder: watched.Folder) -> tuple[dict[str, list[watched.Recovery]], dict[str, list[dict]]]:
    """All in turn; TorchFT and what goes beside it where it is."""
    rng = random.Random(5)
    missing = watched.Torchft.missing()
    ours = [kind for kind in FLAGS if kind != "alone" or not missing]
    found: dict[str, list[watched.Recovery]] = {kind: [] for kind in (*ours, "torchrun", "torchft")}
    journals: dict[str, list[dict]] = {kind: [] for kind in ours}
    if missing:
        print(f"TorchFT is left out: {missing}", flush=True)
    for _ in range(ROUNDS):
        for kind in ours:
            with watched.Enn(folder.config, folder.fresh(kind), *FLAGS[kind]) as run:
                found[kind] += recoveries(run, rng)
                journals[kind].append(told(run))
                staged = run.staged()
        with watched.Torchrun(folder.config, staged, folder.fresh("torchrun"), RESTARTS_MAX) as run:
            run.wait_snapshot()
            found["torchrun"] += recoveries(run, rng)
        if not missing:
            with watched.Torchft(folder.config, staged, folder.fresh("torchft"), RESTARTS_MAX) as run:
                found["torchft"] += recoveries(run, rng)
    return found, journals


def main(name: str = "recover_cpu", seconds_max: float = 1.0) -> None:
    """Measures with a spare and without, and writes the figures `name`, `name`_no_spare and lost_work."""
    load = watched.load()
    with watched.Folder() as folder:
        found, journals = measure(folder)
    of = lambda kind, what: [getattr(recovery, what) for recovery in found[kind]]
    passed = True
    for figure, kind in {name: "spare", f"{name}_no_spare": "none"}.items():
        more = {
            "peer_where_it_was_s": statistics.median(of("torchrun", "beyond")),
            "ours_where_it_was_s": statistics.median(of(kind, "beyond")),
            "ours_done_by_one_s": statistics.median(of(kind, "one")),
            "ours_all": of(kind, "first"),
            "peer_all": of("torchrun", "first"),
            "journal": journals[kind],
            "load": [load, watched.load()],
        }
        passed &= record.record(figure, "s", "lower", of(kind, "first"), of("torchrun", "first"), "torchrun 2.11 + DDP", 1.0, more)
    if found["torchft"]:
        for figure, kind, what in (("torchft", "spare", "first"), ("alone", "alone", "alone")):
            ours, peer = of(kind, what), of("torchft", what)
            more = {"ours_all": ours, "peer_all": peer, "load": [load, watched.load()]}
            passed &= record.record(f"{name}_{figure}", "s", "lower", ours, peer, "TorchFT 0.2.0 + Gloo", 1.0, more)
    lost = of("spare", "again") + of("none", "again")
    more = {"ours_all": lost, "peer_all": of("torchrun", "again")}
    suffix = name.removeprefix("recover_cpu").removeprefix("recover")
    record.record(f"lost_work{suffix}", "steps", "lower", lost, of("torchrun", "again"), "torchrun, a snapshot an epoch", None, more)
    if max(lost) > LOST_STEPS_MAX:
        sys.exit(f"lost_work: {max(lost)} steps were done twice, at most {LOST_STEPS_MAX} are allowed")
    from_checkpoint = sum(journal["from_checkpoint"] for kind in journals.values() for journal in kind)
    if from_checkpoint:
        sys.exit(f"{name}: {from_checkpoint} recoveries read a checkpoint")
    seconds = statistics.median(of("spare", "first"))
    if seconds >= seconds_max:
        sys.exit(f"{name}: {seconds:.2f} s, not below {seconds_max} s")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
