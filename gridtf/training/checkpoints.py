"""Checkpoints of a training: all processes take part, the leader's is kept, and all continue from the newest one."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from gridtf import contract
from gridtf.errors import GridtfError, UsageError
from gridtf.states import SAVED_CODE
from gridtf.text import some, were
from gridtf.training import checkpointfolder as folders
from gridtf.training.checkpointfolder import PREFIX, Finished, Shapes
from gridtf.training.group import current as current_group
from gridtf.training.members import Members
from gridtf.training.mirrored import Mirrored
from gridtf.training.ranks import Alone, Averaged
from gridtf.training.variables import name_of, seed_of, tensorflow_variable, trainable_of, variables_of

_VISIBLE_AFTER = 60.0  # seconds after which every host must see what the leader has seen


def checkpoint(
    model: Any,
    optimizer: Any = None,
    *,
    every: int | None = None,
    step: Any = None,
    folder: str | os.PathLike[str] | None = None,
    keep: int = 3,
) -> Checkpoints:
    """Continue from the newest finished checkpoint of this training, if there is one, and save further ones.

    ::

        saved = training.checkpoint(model, optimizer, every=100)
        while saved.step < STEPS:
            train_step(next(batches))
            saved.after_step()
        saved.save()

    With ``fit`` of Keras, give it ``saved.callback()``::

        model.fit(data, epochs=EPOCHS, initial_epoch=saved.epoch, callbacks=[saved.callback()])

    It works without a strategy, with ``MirroredStrategy``, with ``MultiWorkerMirroredStrategy`` (all workers call the
    same functions after the same steps), with ``ParameterServerStrategy`` (in the coordinator, after ``join()``) and
    with averaging (``after_step()`` follows ``group.step()``). A checkpoint can be restored with another number of
    workers.

    Args:
        model: A ``tf.Module`` or a model of Keras 3 or tf_keras. Its variables must exist (``model.build(…)``).
        optimizer: The optimizer; None: the one that a Keras model was compiled with, if it was.
        every: Steps between two checkpoints; None: after each epoch of ``fit``, on request, and by save().
        step: The program's own counter of steps, such as ``optimizer.iterations``: it is restored, and read instead of
            counting the calls of after_step().
        folder: A folder that all hosts share; None: ``checkpoints`` in OUTPUT_DIR.
        keep: How many checkpoints are kept.

    Returns:
        The checkpoints of this training.

    Raises:
        GridtfError: The folder cannot be written, or its newest checkpoint does not fit the model.
        UsageError: The model has no variables yet, or an argument is not valid.
    """
    for name, value in (("every", every), ("keep", keep)):
        if not (value is None and name == "every") and (type(value) is not int or value < 1):
            what = f"training.checkpoint: {name}={value!r} is not a whole number from 1 on"
            raise UsageError(what, hint=f"such as {name}=100" if name == "every" else "such as keep=3")
    if isinstance(step, int):
        what = f"training.checkpoint: step={step!r} is a number, not a counter"
        raise UsageError(what, hint="leave it out, and saved.step counts; or write step=optimizer.iterations")
    where = folder or contract.output_dir() / "checkpoints"
    return Checkpoints(model, optimizer, every, step, Path(where).absolute(), keep)


class Checkpoints:
    """The checkpoints of a training: made by checkpoint().

    Attributes:
        folder: The folder that holds them.
        epoch: The number of epochs of ``fit`` that have ended.
        batch: The number of batches of the next epoch that the model has been trained on.
        size: The number of batches of an epoch; None: unknown.
    """

    def __init__(self, model: Any, optimizer: Any, every: int | None, step: Any, folder: Path, keep: int) -> None:
        self.folder = folder
        self._every, self._keep = every, keep
        self._count, self._variable = 0, step
        self.epoch = self.batch = 0
        self.size: int | None = None
        self._model = model
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self._parts = {"model": model} if optimizer is None else {"model": model, "optimizer": optimizer}
        strategy = _strategy(model)
        self._shapes = _built(model, optimizer, strategy)
        # By their own names too: of Keras 3, TensorFlow finds what layers in lists and dicts hold only by accident.
        self._variables = _named(self._parts)
        self._objects = tf.train.Checkpoint(**_tracked(self._parts), **self._variables)
        self._members: Members | None = None
        mirrored = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        self._ranks = self._choose_ranks(strategy if mirrored else None)
        self._all_read = mirrored and any(map(_is_reduced_by_reading, variables_of(model)))
        self._saved: int | None = None  # the step of the last checkpoint
        self._owed = False  # an epoch has ended while the members of a group had different values
        if self._ranks.leads:
            contract.note_checkpoints(folder)
        contract.checkpoint_requested()  # from now on, a request does not end this process
        self.restore()

    def _choose_ranks(self, strategy: Any) -> Alone | Mirrored:
        if strategy is not None:
            return Mirrored(strategy, contract.checkpoint_requested)
        if group := current_group():
            if len(group.members) > 1 and not _lazy(self._parts):
                self._members = Members(self, group, self._variables)
            return Averaged(group, self._save_and_exit)
        return Alone(contract.checkpoint_requested)

    @property
    def step(self) -> int:
        """The number of steps that the model has been trained for."""
        return self._count if self._variable is None else int(tensorflow_variable(self._variable).numpy())

    def after_step(self, steps: int = 1) -> None:
        """Count a step, and save when a checkpoint is due. When one is requested, save it and exit with 42.

        Args:
            steps: How many steps were made since the last call, such as those between two ``join()``s.

        Raises:
            GridtfError: The checkpoint cannot be written. The last one is still there.
        """
        self._count += steps
        if self._ranks.wanted(steps):
            self._save_and_exit()
        if (self._owed or self._passes(self.step)) and self._ranks.together:
            self.save()

    def due(self, steps: int) -> bool:
        """Whether a checkpoint will be saved when the members of a group have exchanged.

        Args:
            steps: That were made and not counted yet; 0: it is the end of the training.
        """
        if not steps:
            return self.step != self._saved
        ends = not self._every and self.size is not None and self.batch + steps >= self.size  # an epoch
        return self._owed or ends or self._passes(self.step + (steps if self._variable is None else 0))

    def _passes(self, step: int) -> bool:
        return self._every is not None and step // self._every > (self._saved or 0) // self._every

    def after_epoch(self) -> None:
        """Save, unless checkpoints are due after a number of steps. callback() calls this after each epoch.

        Members of an averaging group save after their next exchange, when all have the same values.
        """
        if not self._every:
            self._owed = not self._ranks.together
            if not self._owed:
                self.save()

    def after_training(self) -> None:
        """Save what the training has ended with. callback() calls this at the end of ``fit``."""
        self._ranks.settle()
        self.save()

    def _save_and_exit(self) -> NoReturn:
        self.save()
        done = f"saved step {self.step} in {self.folder}, to be continued (exit code {SAVED_CODE})"
        self._say(f"a checkpoint was requested: {done}")
        sys.exit(SAVED_CODE)

    def save(self) -> None:
        """Save a checkpoint, unless the last one is of the same step. All processes of a strategy must call this.

        Raises:
            GridtfError: It cannot be written. The last one is still there.
        """
        step = self.step
        if step == self._saved:
            return
        _raise_told(self._ranks.told(self._write(step)))
        self._saved, self._owed = step, False

    def _write(self, step: int) -> str:
        """Write this process's part. Returns what went wrong, in lines."""
        taken_part = False

        def files(prefix: str) -> None:
            nonlocal taken_part
            taken_part = True
            self._objects.write(prefix)
            self._need_all(prefix)
            if self._members:
                self._members.move(Path(prefix).parent)

        problem = ""
        if self._ranks.leads:
            try:
                folders.write(self.folder, step, self.epoch, self.batch, self._shapes, files)
                folders.prune(self.folder, self._keep)
            except GridtfError as error:
                problem = _lines(error)
            except (OSError, tf.errors.OpError) as error:
                problem = _lines(self.cannot_write(error, step))
        if self._all_read and not taken_part:
            with tempfile.TemporaryDirectory() as scratch:
                self._objects.write(str(Path(scratch, PREFIX)))
        return problem

    def cannot_write(self, error: Exception, step: int | None = None) -> GridtfError:
        """An error about a checkpoint that cannot be written.

        Args:
            error: Why not.
            step: Of the checkpoint; None: it is this member's part of the next one.
        """
        what = "this task's part of a checkpoint" if step is None else f"the checkpoint of step {step}"
        last = "no earlier one is there" if self._saved is None else f"the one of step {self._saved} is still there"
        return GridtfError(
            f"{what} cannot be written to {self.folder}",
            why=_reason(error),
            hint=f"{last}; look at df and your quota, or choose another folder=…",
        )

    def _need_all(self, prefix: str) -> None:
        """Check that files which were written hold every variable that the model and the optimizer have now.

        Raises:
            GridtfError: They lack one.
        """
        known = {id(tensorflow_variable(variable)) for variable in self._variables.values()}
        late = [each for each in _named(self._parts).values() if id(tensorflow_variable(each)) not in known]
        if late:
            names = [*map(name_of, late)]
            raise GridtfError(
                f"{some(names, most=2)} {were(names)} created after training.checkpoint(…), and would not be saved",
                hint="make all variables first: model.build(…), or call the model on a batch",
            )
        if lost := _lacking(prefix, self._variables):
            raise GridtfError(
                f"TensorFlow has not saved {some(_names(lost), most=2)}", hint="please report it, with the model"
            )

    def restore(self) -> int:
        """Restore the newest finished checkpoint, if there is one. All processes of a strategy must call this.

        Returns:
            Its step; 0 without one.

        Raises:
            GridtfError: The folder cannot be read or written, or the checkpoint does not fit the model.
        """
        kind, _, rest = self._ranks.told(self._look()).partition(" ")
        if kind == "problem":
            _raise_told(rest)
        if kind == "none":
            return 0
        found = self._open(int(rest))
        folders.need_fit(found, self._shapes)
        self._read(found)
        self._count = self._saved = found.step
        self.epoch, self.batch = found.epoch, found.batch
        if self._variable is not None:
            self._variable.assign(found.step)
        shared = ", with the leader's state for all" if self._members and not self._members.restored else ""
        self._say(f"continues from step {found.step}, saved in {found.path}{shared}")
        if self._members and self._members.group.attached:  # else attach() does
            self._members.resume()
        return found.step

    def _read(self, found: Finished) -> None:
        seeds = [] if self._ranks.same_seeds else [*filter(seed_of, self._variables.values())]
        own, old = [seed.numpy()[0] for seed in seeds], False
        hint = "to continue from the one before, remove this folder"
        try:
            lost = _lacking(found.prefix, self._variables)
            objects = self._objects
            if old := len(lost) == len(self._variables):  # of a gridtf that left it to TensorFlow to find them
                seedless = {name: each for name, each in self._variables.items() if not seed_of(each)}
                objects = tf.train.Checkpoint(**_tracked(self._parts), **seedless)
            elif lost:
                raise ValueError(f"it lacks {some(_names(lost), most=2)}")
            folders.need_none(found, _of_other_types(found.prefix, self._variables))
            objects.read(found.prefix).assert_existing_objects_matched().expect_partial()
            if self._members:
                self._members.read(found)
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            why = _reason(error)
            if old and isinstance(error, AssertionError):
                why = "it was written by a gridtf that did not save layers which a model holds in a list or a dict"
                hint = "their weights are lost: begin anew in another folder, training.checkpoint(…, folder=…)"
            raise GridtfError(f"{found.path} cannot be restored", why=why, hint=hint) from error
        for seed, number in zip(seeds, own, strict=True):
            seed.assign([number, seed.numpy()[1]])

    def callback(self) -> Any:
        """Make a callback for ``fit`` of the model's Keras, Keras 3 or tf_keras.

        It counts the batches as steps, saves as after_step() does, and, without ``every``, after each epoch. An epoch
        that was interrupted is continued with the batches that remained.
        """
        from gridtf.training.kerascallback import make_callback

        return make_callback(self, self._model)

    def _look(self) -> str:
        """What the leader tells: ``step N``, ``none``, or ``problem`` and its lines."""
        try:
            if self._ranks.leads:
                folders.need_writable(self.folder)
            found, skipped = folders.newest(self.folder)
        except GridtfError as error:
            return f"problem {_lines(error)}"
        for why in skipped:
            self._say(f"skips a checkpoint: {why}")
        return f"step {found.step}" if found else "none"

    def _open(self, step: int) -> Finished:
        """The checkpoint that the leader has found; other hosts may see it a little later."""
        deadline = time.monotonic() + _VISIBLE_AFTER
        path = self.folder / f"step-{step}"
        while isinstance(found := folders.open_finished(path), str):
            if time.monotonic() > deadline:
                host = os.uname().nodename
                raise GridtfError(
                    f"{path} cannot be read on host {host}", why=found, hint="all hosts must see the same folder"
                )
            time.sleep(0.2)
        return found

    def _say(self, what: str) -> None:
        if self._ranks.leads:
            print(f"gridtf: {what}", flush=True)


# --- models and optimizers of tf.Module, Keras 3 and tf_keras


def _named(parts: Mapping[str, Any]) -> dict[str, Any]:
    """A name for each variable, by its place among those of its part, where the variables are known beforehand."""
    lazy = _lazy(parts)
    return {
        f"{name}_{number}": variable
        for name, part in parts.items()
        for number, variable in enumerate(() if name in lazy else variables_of(part))
    }


def _lazy(parts: Mapping[str, Any]) -> list[str]:
    """The optimizers that make their variables in the first step: those of tf.keras.optimizers.legacy."""
    return [name for name, part in parts.items() if name == "optimizer" and not hasattr(part, "build")]


def _tracked(parts: Mapping[str, Any]) -> dict[str, Any]:
    """All but what TensorFlow refuses and _named has named: the optimizers of Keras 3.0."""
    kinds = {name: type(each) for name, each in parts.items()}
    refused = {
        name for name, kind in kinds.items() if hasattr(kind, "build") and not hasattr(kind, "_trackable_children")
    }
    return {name: each for name, each in parts.items() if name not in refused}


def _lacking(prefix: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Those of these variables that are not in TensorFlow's files, by their names and shapes."""
    held = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    return {
        name: variable
        for name, variable in variables.items()
        if held.get(f"{name}/.ATTRIBUTES/VARIABLE_VALUE") != [*variable.shape]
    }


def _of_other_types(prefix: str, variables: Mapping[str, Any]) -> list[str]:
    """A line for each variable whose numbers are of another type in TensorFlow's files."""
    held = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
    types = {name: held.get(f"{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in variables}
    return [
        f"{name_of(variable)} is {tensorflow_variable(variable).dtype.name}, in the checkpoint {types[name].name}"
        for name, variable in variables.items()
        if types[name] not in (None, tensorflow_variable(variable).dtype)
    ]


def _names(variables: Mapping[str, Any]) -> list[str]:
    return [name_of(variable) for variable in variables.values()]


def _lines(error: GridtfError) -> str:
    return f"{error.what}\n{error.why}\n{error.hint}"


def _raise_told(problem: str) -> None:
    """Raise what the leader has told, if it is a problem."""
    if problem:
        what, why, hint = (*problem.split("\n"), "", "")[:3]
        raise GridtfError(what, why=why, hint=hint)


def _shapes(parts: Any) -> Shapes:
    return {
        name: [(name_of(item), tuple(map(int, item.shape))) for item in variables_of(part)]
        for name, part in parts.items()
    }


def _strategy(model: Any) -> Any:
    """The strategy in whose scope the model was made."""
    for variable in variables_of(model):
        return getattr(tensorflow_variable(variable), "distribute_strategy", None) or tf.distribute.get_strategy()
    raise UsageError(
        "training.checkpoint: the model has no variables yet",
        hint="make them first: model.build((None, features)), or call it on a batch",
    )


def _built(model: Any, optimizer: Any, strategy: Any) -> Shapes:
    """The variables of the program, those of the optimizer included, which otherwise come with the first step."""
    parts = {"model": model}
    if optimizer is not None:
        parts["optimizer"] = optimizer
        if hasattr(optimizer, "build") and not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            # variables on parameter servers do not know their strategy
            with (getattr(optimizer, "_distribution_strategy", None) or strategy).scope():
                optimizer.build(trainable_of(model))
    return _shapes(parts)


def _is_reduced_by_reading(variable: Any) -> bool:
    """Whether the workers have different values of it, so that reading it takes all of them: a mean of batches."""
    return bool(getattr(tensorflow_variable(variable), "synchronization", None) == tf.VariableSynchronization.ON_READ)


def _reason(error: Exception) -> str:
    """Why, in one line, without what TensorFlow puts around it: ``{{function_node …}} … [Op:SaveV2]``."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", str(getattr(error, "message", error)).splitlines()[0])
