#!/usr/bin/env python3
"""Plants faults in a scratch clone, one at a time, and expects the simulation of the supervisor to find each.

    planted_faults.py [NAME …]

The clone is made of what is committed, in target/planted. Each fault replaces a piece of text that must be there exactly once. A fault that
no seed finds, and one that can no longer be planted, ends the script with 1.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLONE = ROOT / "target" / "planted"
CLUSTER = "launcher/cluster/src"
SEEDS = 2000
BUILD_SECONDS_MAX = 1800

# Faults with this name are looked for among the seeds of programs.
OF_PROGRAMS = "programs: "

# Name: file, text, and what takes its place.
FAULTS = {
    "programs: the store reset with survivors": (
        f"{CLUSTER}/node_agent/program_group.rs",
        "if !self.is_ending() || !records.are_gone() {",
        "if !self.is_ending() {",
    ),
    "programs: a restart not charged": (
        f"{CLUSTER}/supervisor/programs.rs",
        "                self.programs.budget.charge(self.now);\n",
        "",
    ),
    "no epoch check": (
        f"{CLUSTER}/node_agent/state.rs",
        "if self.leader.is_some_and(|leader| epoch.is_of_leader(leader.since)) {",
        "if self.leader.is_some() || epoch.number > 0 {",
    ),
    "an epoch that does not name its leader": (
        "common/src/wire/node_agent.rs",
        "self.leader == since.leader && self.number >= since.number",
        "self.number >= since.number",
    ),
    "a commit that lacks one shard": (
        f"{CLUSTER}/supervisor/checkpoint_ledger.rs",
        "self.open.get(key).filter(|open| open.missing == 0 && open.in_memory == 0)",
        "self.open.get(key).filter(|open| open.missing <= 1 && open.in_memory == 0)",
    ),
    "the journal written after the commit": (
        f"{CLUSTER}/supervisor/machine.rs",
        "        self.replicate();\n        effects.append(&mut self.out);\n    }\n\n    /// Returns the time of the next `Tick`",
        "        self.replicate();\n        effects.append(&mut self.out);\n"
        "        effects.sort_by_key(|effect| matches!(effect, Effect::Journal(_)));\n    }\n\n    /// Returns the time of the next `Tick`",
    ),
    "no deadline for KILL": (
        f"{CLUSTER}/node_agent/worker_records.rs",
        "(_, EndStage::Terminated { kill_at: at } | EndStage::Killed { unkillable_at: at }) => Some(at),\n"
        "            (_, EndStage::Wanted | EndStage::Unkillable) => None,",
        "(_, EndStage::Killed { unkillable_at: at }) => Some(at),\n"
        "            (_, EndStage::Wanted | EndStage::Terminated { .. } | EndStage::Unkillable) => None,",
    ),
    "a seat given away before Settled": (
        f"{CLUSTER}/supervisor/round_begin.rs",
        "!matches!(seat.taker, Taker::Kept(_)) && self.workers.is_being_left(seat.slot)",
        "matches!(seat.taker, Taker::Kept(_)) && self.workers.is_being_left(seat.slot)",
    ),
    "the restart budget not charged": (
        f"{CLUSTER}/supervisor/round_end.rs",
        "            FailureDecision::Restart if keeps => {\n                self.budget.failures += 1;",
        "            FailureDecision::Restart if keeps => {",
    ),
    "a stop answered before it is replicated": (
        f"{CLUSTER}/supervisor/request_handling.rs",
        "if self.has_begun() { self.nodes.unaware(requests) } else { BTreeSet::new() };",
        "if self.has_begun() && requests == u64::MAX { self.nodes.unaware(requests) } else { BTreeSet::new() };",
    ),
    "what a successor must know not replicated": (
        f"{CLUSTER}/supervisor/machine.rs",
        "        self.replicate();\n",
        "        if self.stop.is_some() {\n            self.replicate();\n        }\n",
    ),
    "a round told of before it has a directory for logs": (
        f"{CLUSTER}/supervisor/round_begin.rs",
        "Some(dir) => dir.made,",
        "Some(_) => true,",
    ),
    "a fenced leader that journals": (
        f"{CLUSTER}/supervisor/machine.rs",
        "        self.write(Effect::Journal(what));",
        "        self.out.push(Effect::Journal(what));",
    ),
    "a message of an old round accepted": (
        f"{CLUSTER}/supervisor/worker_messages.rs",
        "let is_now = said_in == Some(self.round.number);",
        "let is_now = said_in <= Some(self.round.number);",
    ),
    "Halting without a deadline": (
        f"{CLUSTER}/supervisor/timeouts.rs",
        "            Phase::Starting | Phase::Running | Phase::Saving { .. } | Phase::Paused { .. } | Phase::Over => None,\n"
        "            Phase::TakingOver { until }",
        "            Phase::Starting\n            | Phase::Running\n            | Phase::Saving { .. }\n            | Phase::Paused { .. }\n"
        "            | Phase::Halting { .. }\n            | Phase::Over => None,\n            Phase::TakingOver { until }",
    ),
}


def cargo(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs cargo in the clone, with a target directory of its own."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(CLONE / "target")} | variables
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(
        command, cwd=CLONE, env=environment, text=True, capture_output=True, check=False, timeout=BUILD_SECONDS_MAX
    )


def clone() -> None:
    """Brings the clone to what is committed."""
    if not (CLONE / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(CLONE)], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.strip()
    subprocess.run(["git", "fetch", "--quiet", str(ROOT), head], cwd=CLONE, check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", "--detach", head], cwd=CLONE, check=True)


def found(name: str, profile: str) -> str | None:
    """Plants a fault and runs the seeds: what the simulation says, or None when it finds nothing."""
    file, text, planted = FAULTS[name]
    path = CLONE / file
    before = path.read_text()
    if before.count(text) != 1:
        raise SystemExit(f"{name}: {file} holds the text {before.count(text)} times, expected once:\n{text}")
    path.write_text(before.replace(text, planted))
    seeds = "simulation::seeds::seeds_of_programs" if name.startswith(OF_PROGRAMS) else "simulation::seeds::seeds"
    try:
        built = cargo("test", "--profile", profile, "-p", "enn-cluster", "--lib", "--no-run")
        if built.returncode != 0:
            raise SystemExit(f"{name}: the clone does not build:\n{built.stderr[-3000:]}")
        said = cargo(
            "test", "--profile", profile, "-p", "enn-cluster", "--lib", "--", seeds, "--exact", "--nocapture",
            ENN_SIMULATION_SEEDS=str(SEEDS),
        )
    finally:
        path.write_text(before)
    if said.returncode == 0:
        return None
    violation = re.search(r"seed \d+ violates .*", said.stdout + said.stderr)
    return violation.group(0) if violation else (said.stdout + said.stderr)[-2000:]


def main() -> int:
    names = sys.argv[1:] or list(FAULTS)
    profile = os.environ.get("PROFILE", "ci")
    clone()
    missed = []
    for name in names:
        began = time.monotonic()
        said = found(name, profile)
        print(f"{name} ({time.monotonic() - began:.0f} s): {said or 'NOT FOUND'}", flush=True)
        if said is None:
            missed.append(name)
    if missed:
        print(f"{len(missed)} of {len(names)} planted faults were not found: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
