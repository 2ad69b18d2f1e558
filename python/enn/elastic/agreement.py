"""From which step the ranks of a round go on: each says what it has, one of them decides, all follow.

They talk over the store of the round, in JSON, before anything is sent over process groups. Nothing is unpickled that comes from there, and
a checkpoint is named by its folder in a directory that each rank knows.
"""

import json
import sys
from dataclasses import asdict, dataclass, field

from . import neighbour
from .errors import ElasticError

MEMORY = "memory"
CHECKPOINT = "checkpoint"
ANEW = "anew"


@dataclass(frozen=True)
class Held:
    """One part of the state that a rank can bring: its own, which it still has on its device, or a mirror on its node."""

    signature: str
    position: int
    is_mirror: bool


@dataclass(frozen=True)
class Claim:
    """What a rank says. `signature` is the part that it needs; `entry` the position at which its script began, or `None` if it cannot
    begin anew; `reached` the newest position that it knows of; `node` names its node."""

    signature: str
    held: list[Held]
    entry: int | None
    reached: int
    node: str = ""


@dataclass(frozen=True)
class Transfer:
    """A rank sends to another one the part that this one needs."""

    source: int
    target: int
    signature: str


@dataclass
class Decision:
    """Where all go on: after `position` commits. `checkpoint` names its folder; `repeated` the number of steps that are done again;
    `is_replicated` says that each part of the state has two ranks or more; `neighbours` is what `neighbour.targets` returns."""

    kind: str
    position: int
    is_mirror: bool = False
    is_replicated: bool = False
    checkpoint: str | None = None
    transfers: list[Transfer] = field(default_factory=list)
    repeated: int = 0
    neighbours: list[int] = field(default_factory=list)


def agree(store, rank: int, world: int, claim: Claim, find_checkpoint) -> Decision:
    """Returns what all ranks do. `find_checkpoint()` returns position and folder of the newest whole checkpoint, or `None`; one rank calls it.

    Raises `ElasticError` in all ranks if there is nothing to go on with, and `Interrupted` if the round ends before.
    """
    store.set(f"claim/{rank}", json.dumps(asdict(claim)))
    if rank == 0:
        claims = [_claim_of(store.get(f"claim/{one}")) for one in range(world)]
        try:
            answer = asdict(decide(claims, find_checkpoint()))
        except ElasticError as error:
            answer = {"error": str(error)}
        store.set("decision", json.dumps(answer))
    return _decision_of(store.get("decision"))


def _claim_of(data: bytes) -> Claim:
    try:
        fields = json.loads(data)
        held = [Held(**one) for one in fields.pop("held")]
        return Claim(held=held, **fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ElasticError(f"what a rank says of its state is not understood: {error}. Do all ranks have the same release of enn?") from None


def _decision_of(data: bytes) -> Decision:
    try:
        fields = json.loads(data)
        if "error" in fields:
            raise ElasticError(fields["error"])
        transfers = [Transfer(**one) for one in fields.pop("transfers")]
        return Decision(transfers=transfers, **fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ElasticError(f"what rank 0 has decided is not understood: {error}. Do all ranks have the same release of enn?") from None


def decide(claims: list[Claim], checkpoint: tuple[int, str] | None) -> Decision:
    """Returns the newest step that all can go on from; of two equal ones that in memory, and rather a device's than a mirror.

    Raises `ElasticError` if there is none.
    """
    reached = max(claim.reached for claim in claims)
    options = [option for option in (_in_memory(claims), _from_file(checkpoint), _anew(claims)) if option is not None]
    if not options:
        raise ElasticError(
            "no step of the training is held as a whole, neither by the ranks that live nor in a mirror or checkpoint, and a rank that has "
            "trained cannot begin anew: restart the script, and let it call state.checkpoint()"
        )
    decision = max(options, key=lambda option: option.position)
    needed = [claim.signature for claim in claims]
    decision.is_replicated = all(needed.count(one) > 1 for one in needed)
    decision.neighbours = neighbour.targets([claim.node for claim in claims])
    decision.repeated = max(0, reached - decision.position)
    return decision


def _in_memory(claims: list[Claim]) -> Decision | None:
    needed = {claim.signature for claim in claims}
    positions = {held.position for claim in claims for held in claim.held}
    for position in sorted(positions, reverse=True):
        holders = _holders(claims, position)
        if needed <= holders.keys():
            return _memory_decision(claims, position, holders)
    return None


def _holders(claims: list[Claim], position: int) -> dict[str, tuple[bool, int]]:
    """Returns who can bring each part: whether it is a mirror, and the rank."""
    found = {}
    for rank, claim in enumerate(claims):
        for held in claim.held:
            if held.position == position:
                offer = (held.is_mirror, rank)
                found[held.signature] = min(offer, found.get(held.signature, offer))
    return found


def _memory_decision(claims: list[Claim], position: int, holders: dict[str, tuple[bool, int]]) -> Decision:
    transfers = []
    for rank, claim in enumerate(claims):
        if not any(held.position == position and held.signature == claim.signature for held in claim.held):
            transfers.append(Transfer(holders[claim.signature][1], rank, claim.signature))
    is_mirror = any(holders[claim.signature][0] for claim in claims)
    return Decision(MEMORY, position, is_mirror=is_mirror, transfers=transfers)


def _from_file(checkpoint: tuple[int, str] | None) -> Decision | None:
    return Decision(CHECKPOINT, checkpoint[0], checkpoint=checkpoint[1]) if checkpoint is not None else None


def _anew(claims: list[Claim]) -> Decision | None:
    entries = {claim.entry for claim in claims}
    if len(entries) != 1 or None in entries:
        return None
    return Decision(ANEW, entries.pop())


def say(decision: Decision, step: int, rank: int) -> None:
    """Says in one rank where the training goes on, if that is not its first step."""
    if rank != 0 or (decision.kind == ANEW and not decision.repeated):
        return
    memory = "mirrored memory" if decision.is_mirror else "the memory of the ranks that live"
    sources = {MEMORY: memory, CHECKPOINT: f"the checkpoint {decision.checkpoint}", ANEW: "the beginning of the script"}
    number = decision.repeated
    steps = f"{number} step{' is' if number == 1 else 's are'} repeated"
    print(f"enn: training goes on after step {step}, from {sources[decision.kind]}; {steps}", file=sys.stderr, flush=True)
