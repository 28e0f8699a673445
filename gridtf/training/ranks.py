"""How the processes of a training agree: on the checkpoint to restore, on the step to save at, on how that went."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf import contract

if TYPE_CHECKING:
    from gridtf.training.group import Group

_PERIOD = 1.0  # seconds between two questions whether a checkpoint is requested
_MOST_STEPS = 1 << 20  # between two such questions; a float32 holds it exactly


class Alone:
    """A process that saves without the help of others: without a strategy, with one for several GPUs, or the
    coordinator of ParameterServerStrategy.

    Args:
        requested: Whether a checkpoint is requested.

    Attributes:
        leads: Whether this process keeps its checkpoints.
        together: Whether all processes have the same values now, so that a checkpoint may be saved.
        same_seeds: Whether random numbers of this process go on with the leader's seeds, not with its own.
    """

    together = same_seeds = True

    def __init__(self, requested: Callable[[], bool]) -> None:
        self._requested = requested
        self.leads = contract.leads()

    def told(self, text: str) -> str:
        """Tell all processes what the leader knows. All of them must call this, and wait for each other.

        Args:
            text: What the leader tells, cut after 1000 bytes; that of the others is ignored.

        Returns:
            The leader's text.
        """
        return text

    def settle(self) -> None:
        """Wait at the end of the training until all processes have the same values."""

    def wanted(self, steps: int) -> bool:
        """Whether a checkpoint is requested: after the same step, the answer is the same in all processes.

        Args:
            steps: The number of steps since the last call.
        """
        del steps
        return self._requested()


class Averaged(Alone):
    """A member of an averaging group. The wish for a checkpoint travels with the average, right after which all members
    have the same values: then the leader saves, also where a checkpoint was due some steps before.

    Args:
        group: The group.
        end: Saves and ends this process; called where a checkpoint is requested while the member waits for others.
    """

    def __init__(self, group: Group, end: Callable[[], object]) -> None:
        self._group = group
        self.leads = self.same_seeds = group.rank == 0
        group.on_agreed_checkpoint = end

    @property
    def together(self) -> bool:  # type: ignore[override]
        return self._group.exchanged

    def settle(self) -> None:
        self._group.finish()

    def wanted(self, steps: int) -> bool:
        del steps
        return self._group.exchanged and self._group.agreed_checkpoint


def steps_until(steps: int, seconds: float) -> int:
    """After how many steps a question is to be asked again.

    Args:
        steps: The number of steps since the last one.
        seconds: The seconds since the last one.

    Returns:
        The steps of about a second, at least 1, and at most twice as many as last time: the first ones are slow.
    """
    return min(max(1, int(steps * _PERIOD / max(seconds, 1e-6))), 2 * steps, _MOST_STEPS)


def is_leader(task_type: str, index: int, cluster: Mapping[str, Sequence[str]]) -> bool:
    """Whether a worker of a strategy keeps checkpoints: the chief, else worker 0.

    Args:
        task_type: The type of its task, as in TF_CONFIG.
        index: The index of its task.
        cluster: Task type -> the addresses of its tasks.
    """
    return task_type == "chief" or (task_type == "worker" and index == 0 and not cluster.get("chief"))
