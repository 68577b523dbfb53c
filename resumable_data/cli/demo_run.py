"""One run of the demo: launch after launch, watched through the ledger, some of them killed in mid-update."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.cli.launch import Launch, kill_if
from resumable_data.errors import LedgerError, ResumableDataError
from resumable_data.ledger.layout import CLAIM_NAME, attempt_name, rank_name
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.plan import BatchPlan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_POLL_S = 0.003
_PRINT_EVERY = 5
_END_TIME_S_MAX = 60


class DemoError(ResumableDataError):
    """The demo could not do what it shows."""

    exit_code = 1


class Kill(NamedTuple):
    """Which process of a launch is killed, at the first chance from which update on."""

    rank: int
    update: int


class Stage(NamedTuple):
    """One launch: on how many processes, and whether one of them is killed."""

    num_processes: int
    kill: Kill | None = None


class MidUpdate(NamedTuple):
    """Where a rank is that was handed a part of an update: the last microbatch it was handed, of how many."""

    update: int
    microbatch: int
    num_microbatches: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all launches of the demo have in common.

    Attributes:
        script: The training script.
        folder: Where runs and output go.
        tokens: What it trains on.
        num_epochs: Epochs of a run.
        checkpoint_every: Updates from one checkpoint to the next.
    """

    script: Path
    folder: Path
    tokens: Path
    num_epochs: int = 2
    checkpoint_every: int = 8

    def arguments(self, out: Path) -> list[str]:
        """The script's arguments, for a run that writes to `out`."""
        options = {
            "--tokens": self.tokens,
            "--out": out,
            "--epochs": self.num_epochs,
            "--checkpoint-every": self.checkpoint_every,
        }
        return [str(part) for option in options.items() for part in option]


@dataclass
class Progress:
    """Prints lines with the seconds since it was made."""

    start_s: float = field(default_factory=time.monotonic)

    def __call__(self, text: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self.start_s:5.1f} s] {text}", flush=True)


def run_stages(job: Job, name: str, stages: Sequence[Stage], say: Progress) -> dict[int, float]:
    """Run launch after launch, each from the newest checkpoint of those before; the run is in ``job.folder / name``.

    Returns:
        Update -> loss; of an update that was done twice, the loss of the later launch.

    Raises:
        DemoError: A launch failed, or ended before it could be killed.
    """
    losses: dict[int, float] = {}
    out = job.folder / name
    for attempt, stage in enumerate(stages, 1):
        say(f"{name} run: torchrun starts {stage.num_processes} processes")
        log = job.folder / f"{name}-{attempt}"
        with Launch(job.script, job.arguments(out), num_processes=stage.num_processes, log=log) as launch:
            _follow(launch, stage, Watch(out, attempt), losses, say)
    return losses


@dataclass(frozen=True)
class Watch:
    """Looks into the ledger and the checkpoints of a run while an attempt goes on."""

    out: Path
    attempt: int

    def mid_update(self, rank: int) -> MidUpdate | None:
        """Where a rank is that was handed some, and not all, microbatches of a full update; else None."""
        folder = self.out / "ledger" / attempt_name(self.attempt)
        try:
            deliveries = read_rank(folder / rank_name(rank)).all_deliveries()
            claim = read_claim(folder / CLAIM_NAME)
        except LedgerError:  # not there yet
            return None
        batch = claim.start.recipe.global_batch
        plan = BatchPlan(global_batch=batch, microbatch=claim.microbatch, num_replicas=claim.num_replicas)
        if not len(deliveries) or deliveries.index[-1] + 1 == plan.accumulation_steps:
            return None
        return MidUpdate(int(deliveries.update[-1]), int(deliveries.index[-1]), plan.accumulation_steps)

    def newest_checkpoint(self) -> int | None:
        """Updates in the newest complete checkpoint."""
        return max((int(path.parent.name) for path in self.out.glob("checkpoints/*/.metadata")), default=None)


def _follow(launch: Launch, stage: Stage, watch: Watch, losses: dict[int, float], say: Progress) -> None:
    """Follow one launch to its end, and kill the process that is to be killed."""
    is_running, num_updates = True, 0
    while is_running:
        is_running = launch.exit_code is None  # asked first: what was printed before the end is still read
        for record in launch.records():
            if record.get("rank") == 0:
                num_updates = record["num_updates"]
                say(f"  training starts at update {record['start']} of {num_updates}")
            if "loss" in record:
                losses[record["update"]] = record["loss"]
                if (record["update"] + 1) % _PRINT_EVERY == 0:
                    say(f"  {record['update'] + 1} of {num_updates} updates, loss {record['loss']:.3f}")
        if stage.kill and _kill_in_mid_update(launch, stage.kill, watch, say):
            launch.wait(_END_TIME_S_MAX)
            return
        time.sleep(_POLL_S)
    if launch.exit_code:
        raise DemoError(f"the run on {launch.num_processes} processes failed; its last lines:\n{launch.last_lines()}")
    if stage.kill:
        raise DemoError(f"the run on {launch.num_processes} processes ended before it could be killed in mid-update")


def _kill_in_mid_update(launch: Launch, kill: Kill, watch: Watch, say: Progress) -> bool:
    """Kill the process if the ledger shows that it has a part of an update, and a checkpoint exists."""
    place, checkpoint, pid = watch.mid_update(kill.rank), watch.newest_checkpoint(), launch.pids.get(kill.rank)
    if place is None or place.update < kill.update or checkpoint is None or pid is None:
        return False
    if not kill_if(lambda: watch.mid_update(kill.rank) == place, pid):
        return False
    say(
        f"  SIGKILL to rank {kill.rank} in update {place.update}, after its microbatch {place.microbatch + 1} of "
        f"{place.num_microbatches}; the newest checkpoint has {checkpoint} updates"
    )
    return True
