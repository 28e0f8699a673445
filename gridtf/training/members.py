"""What each member of an averaging group keeps of its own in a checkpoint, so that all go on as they would have."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gridtf.training import checkpointfolder as folders
from gridtf.training.variables import tensorflow_variable

if TYPE_CHECKING:
    from gridtf.errors import GridtfError
    from gridtf.training.checkpointfolder import Finished
    from gridtf.training.checkpoints import Checkpoints
    from gridtf.training.group import Group

_INTERVAL = "interval"  # the name of the steps since the last exchange, and their weight


class Members:
    """The states of the members: files ``member-RANK-of-WORLD`` in the folder of a checkpoint.

    After an exchange these are the variables that are not averaged, such as those of the optimizer and seeds. At the
    end of the training, whose last exchange a longer training would not make, all of them from before it. Every member
    writes its own during the exchange that precedes the save, where all are sure to take part; the leader moves them.

    Args:
        saved: The checkpoints.
        group: The group.
        variables: Name -> each variable of the model and the optimizer.

    Attributes:
        saved: The checkpoints.
        group: The group.
        restored: Of which checkpoint the state was read, as exchange.Member.token; 0: of none.
        kept: The folder in which all members have written their present states; None: they have not.
    """

    def __init__(self, saved: Checkpoints, group: Group, variables: Mapping[str, Any]) -> None:
        self.saved, self.group = saved, group
        self._variables = {name: tensorflow_variable(variable) for name, variable in variables.items()}
        self._state: dict[str, Any] = {}  # that was read
        self.restored = 0
        self.kept: Path | None = None
        if group.rank == 0:  # before any member can write: they wait for the leader's word
            folders.forget(saved.folder)
            atexit.register(folders.forget, saved.folder)
        group.keeper = self

    def take(self, steps: int, weight: float, averaged: frozenset[int] = frozenset()) -> dict[str, Any]:
        """This member's present state.

        Args:
            steps: Since the last exchange.
            weight: Of these steps.
            averaged: The ``id`` of each variable that has the same value in all members; empty: all are taken.
        """
        with tf.device("CPU:0"):  # a GPU may have no room for all of it
            own = {name: each for name, each in self._variables.items() if id(each) not in averaged}
            own = own if self.group.rank or not averaged else {}  # the leader's are in the checkpoint
            state = {name: tf.identity(each) for name, each in own.items()}
            return {**state, _INTERVAL: tf.constant([steps, weight], tf.float64)}

    def write(self, token: int, state: dict[str, Any]) -> GridtfError | None:
        """Write this member's state, for the leader to move it.

        Args:
            token: The leader's word; see exchange.Member.
            state: As take() has made it.

        Returns:
            Why it cannot be written.
        """

        def files(prefix: str) -> None:
            names, whole = [*state], [""] * len(state)
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=whole, tensors=[*state.values()])

        try:
            self.kept = folders.write_member(self.saved.folder, token, self._name(self.group.rank), files)
        except (OSError, tf.errors.OpError) as error:
            return self.saved.cannot_write(error)
        return None

    def move(self, target: Path) -> None:
        """Move what all members have kept into the folder of a checkpoint.

        A part that is not there, since another host has a folder of its own by this name, is told and left out.

        Raises:
            OSError: It is not possible.
        """
        if self.kept:
            for rank, name in enumerate(self.group.members):
                try:
                    folders.move_member(self.kept, target, self._name(rank))
                except FileNotFoundError:
                    where = f"{self.saved.folder} of this host: do all hosts share that folder?"
                    print(f"gridtf: the part of {name} in a checkpoint is not in {where}", flush=True)
            folders.forget(self.saved.folder)
            self.kept = None

    def read(self, found: Finished) -> None:
        """Read this member's state; nothing where the checkpoint has none, or those of another number of members."""
        prefix = found.path / self._name(self.group.rank)
        self._state, self.restored = {}, 0
        if Path(f"{prefix}.index").exists():
            reader = tf.train.load_checkpoint(str(prefix))
            self._state = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
            self.restored = 1 + found.step % (1 << 20)

    def resume(self) -> None:
        """Go on with what was read, unless ``fit`` will find that the training is complete."""
        state, self._state, self.restored = self._state, {}, 0
        if state and (self.group.epochs is None or self.saved.epoch < self.group.epochs):
            steps, weight = state.pop(_INTERVAL).tolist()
            for name, value in state.items():
                self._variables[name].assign(value)
            self.group.resume(int(steps), weight)

    def _name(self, rank: int) -> str:
        return f"member-{rank}-of-{len(self.group.members)}"
