"""The folder of a training's checkpoints: which are finished, and how one is written so that a crash leaves no half.

A checkpoint is a folder ``step-N`` with TensorFlow's files and ``checkpoint.json``. It is written as
``step-N.unfinished``, forced to the disk and renamed, so that a folder ``step-N`` is complete. Members of an averaging
group write theirs in ``.members-TOKEN``, from where the leader moves them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError
from gridtf.values import Value

PREFIX = "variables"  # of TensorFlow's files in the folder of a checkpoint
_RECORD = "checkpoint.json"
_FINISHED = re.compile(r"step-(\d{1,18})")
_UNFINISHED = ".unfinished"
_REMOVED = ".removed"
_MEMBERS = ".members-"
_SUFFIXES = (".index", ".data-00000-of-00001")  # of TensorFlow's files
# Object (model, optimizer) -> (name, shape) of its variables, in their order.
Shapes = Mapping[str, Sequence[tuple[str, tuple[int, ...]]]]


class Finished(Value):
    """A finished checkpoint.

    Attributes:
        path: Its folder.
        step: The number of steps that the model had been trained for.
        epoch: The number of epochs that had ended; 0 where none were counted.
        batch: The number of batches of the next epoch that had been trained on; 0 where no epochs were counted.
        shapes: The variables that it holds.
    """

    path: Path
    step: int
    epoch: int
    batch: int
    shapes: Shapes

    @property
    def prefix(self) -> str:
        """Its path as ``tf.train.Checkpoint.read`` and ``tf.train.load_checkpoint`` take it."""
        return str(self.path / PREFIX)


def newest(folder: Path) -> tuple[Finished | None, list[str]]:
    """Find the newest finished checkpoint.

    Args:
        folder: The folder of the checkpoints; it need not exist.

    Returns:
        (the checkpoint, None where there is none; what is wrong with each newer one, in one line).

    Raises:
        GridtfError: The folder cannot be read.
    """
    try:
        names = os.listdir(folder) if folder.is_dir() else []
    except OSError as error:
        raise cannot("read", folder, error) from None
    skipped = []
    for name in sorted(names, key=_step, reverse=True):
        if _step(name) < 0 or name.endswith(_REMOVED):
            continue
        if name.endswith(_UNFINISHED):
            skipped.append(f"{folder / name} was not finished")
        elif isinstance(found := open_finished(folder / name), Finished):
            return found, skipped
        else:
            skipped.append(f"{folder / name} is damaged: {found}")
    return None, skipped


def _step(name: str) -> int:
    """The step of a checkpoint's folder, also of an unfinished or removed one; -1 for other names."""
    match = _FINISHED.fullmatch(name.removesuffix(_UNFINISHED).removesuffix(_REMOVED))
    return int(match[1]) if match else -1


def open_finished(path: Path) -> Finished | str:
    """Read the record of a checkpoint, and check that its files have the recorded sizes.

    Args:
        path: The folder of the checkpoint.

    Returns:
        The checkpoint, or what is wrong with it.
    """
    try:
        record = json.loads((path / _RECORD).read_bytes())
        for name, size in record["files"].items():
            if (found := (path / name).stat().st_size) != size:
                return f"{name} has {found} bytes, not {size}"
        shapes = {
            part: [(str(name), tuple(map(int, shape))) for name, shape in variables]
            for part, variables in record["variables"].items()
        }
        return Finished(path, int(record["step"]), int(record["epoch"]), int(record["batch"]), shapes)
    except OSError as error:
        return f"{Path(error.filename or path).name}: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"{_RECORD} cannot be read"


def write(folder: Path, step: int, epoch: int, batch: int, shapes: Shapes, files: Callable[[str], object]) -> Path:
    """Write a checkpoint: beside, forced to the disk, then renamed.

    Args:
        folder: The folder of the checkpoints.
        step: As in Finished, like the next two.
        epoch: The number of epochs that have ended.
        batch: The number of batches since then.
        shapes: The variables.
        files: Writes TensorFlow's files, given their common prefix.

    Returns:
        The folder of the checkpoint.

    Raises:
        OSError: It cannot be written; what was written is removed.
    """
    path = folder / f"step-{step}"
    beside = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        files(str(beside / PREFIX))
        sizes = {file.name: file.stat().st_size for file in sorted(beside.iterdir())}
        record = {"step": step, "epoch": epoch, "batch": batch, "files": sizes, "variables": shapes}
        (beside / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        for file in (*beside.iterdir(), beside):
            _sync(file)
        _remove(path)  # one of the same step that is damaged
        beside.rename(path)
    except Exception:
        shutil.rmtree(beside, ignore_errors=True)  # it would keep a full disk full
        raise
    _sync(folder)
    return path


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest finished checkpoints; a damaged one does not count as finished.

    Args:
        folder: The folder of the checkpoints.
        keep: How many finished ones to keep.
    """
    with contextlib.suppress(OSError):  # a folder that stays costs space alone
        names = [name for name in os.listdir(folder) if _step(name) >= 0]
        finished = filter(_FINISHED.fullmatch, names)
        damaged = [name for name in finished if isinstance(open_finished(folder / name), str)]
        for name in superfluous(names, keep, damaged):
            _remove(folder / name)


def superfluous(names: Iterable[str], keep: int, damaged: Sequence[str] = ()) -> list[str]:
    """Choose the checkpoints to remove: half removed ones, finished ones beyond the number to keep, damaged ones older
    than those, and unfinished ones older than the newest finished one, which a crash has left.

    Args:
        names: The names of their folders.
        keep: How many finished ones to keep.
        damaged: Those that cannot be restored, and hence do not count as finished.
    """
    names = sorted(names, key=_step, reverse=True)
    finished = [name for name in names if _FINISHED.fullmatch(name) and name not in damaged]
    newest, oldest = (_step(finished[0]), _step(finished[:keep][-1])) if finished else (-1, -1)
    left = [name for name in names if name.endswith(_UNFINISHED) and _step(name) <= newest]
    left += [name for name in damaged if _step(name) < oldest]
    return [*finished[keep:], *left, *(name for name in names if name.endswith(_REMOVED))]


def _remove(path: Path) -> None:
    """Remove a checkpoint; one that is half removed does not count as finished."""
    gone = path if path.name.endswith(_REMOVED) else path.with_name(path.name + _REMOVED)
    try:
        if gone != path:
            shutil.rmtree(gone, ignore_errors=True)
            path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def write_member(folder: Path, token: int, name: str, files: Callable[[str], object]) -> Path:
    """Write what a member of an averaging group keeps of its own, and force it to the disk.

    Args:
        folder: The folder of the checkpoints.
        token: The same in all members, and another one for each checkpoint.
        name: The prefix of its files.
        files: Writes TensorFlow's files, given their prefix with its folder.

    Returns:
        The folder in which all members write.

    Raises:
        OSError: They cannot be written.
    """
    beside = folder / f"{_MEMBERS}{token:x}"
    beside.mkdir(parents=True, exist_ok=True)
    files(str(beside / name))
    for suffix in _SUFFIXES:
        _sync(beside / (name + suffix))
    return beside


def move_member(beside: Path, target: Path, name: str) -> None:
    """Move what a member has written. By names: of another host's files, a listing may know nothing yet.

    Args:
        beside: What write_member() has returned.
        target: The folder of the checkpoint.
        name: The prefix of its files.

    Raises:
        OSError: They cannot be moved.
    """
    for suffix in _SUFFIXES:
        (beside / (name + suffix)).rename(target / (name + suffix))


def forget(folder: Path) -> None:
    """Remove what members have written and the leader has not moved, such as before a crash."""
    for path in folder.glob(f"{_MEMBERS}*"):
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # fsync(2): some network file systems cannot do it for a folder
            raise
    finally:
        os.close(descriptor)


def need_writable(folder: Path) -> None:
    """Check that checkpoints can be written, before hours of training.

    Args:
        folder: The folder of the checkpoints; made if it does not exist.

    Raises:
        GridtfError: It cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        Path(tempfile.mkdtemp(prefix=".writable-", dir=folder)).rmdir()
    except OSError as error:
        raise cannot("write", folder, error) from None


def cannot(what: str, folder: Path, error: OSError) -> GridtfError:
    """An error about the folder of the checkpoints.

    Args:
        what: ``read`` or ``write``.
        folder: The folder.
        error: Why not.
    """
    return GridtfError(
        f"the folder of the checkpoints {folder} cannot be {'read' if what == 'read' else 'written'}",
        why=str(error.strerror or error),
        hint="choose another one: training.checkpoint(…, folder=…); by default it is OUTPUT_DIR/checkpoints",
    )


def need_fit(found: Finished, shapes: Shapes) -> None:
    """Check that a checkpoint has the variables of this program.

    Args:
        found: The checkpoint.
        shapes: The variables of this program.

    Raises:
        GridtfError: It has others.
    """
    need_none(
        found, [line for part, mine in shapes.items() for line in differences(part, found.shapes.get(part), mine)]
    )


def need_none(found: Finished, lines: Sequence[str]) -> None:
    """GridtfError, where there is a line of how a checkpoint differs from the variables of this program."""
    if lines:
        more = f", and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise GridtfError(
            f"the checkpoint {found.path} does not fit this program",
            why="; ".join(lines[:3]) + more,
            hint="continue with the model that was saved, or start anew in another folder: "
            "training.checkpoint(…, folder=…)",
        )


def differences(
    part: str, saved: Sequence[tuple[str, Sequence[int]]] | None, mine: Sequence[tuple[str, Any]]
) -> list[str]:
    """Describe how the variables of an object differ from those in a checkpoint.

    TensorFlow matches variables by their place in the object, not by their names, which Keras numbers; so names only
    serve the description.

    Args:
        part: ``model`` or ``optimizer``.
        saved: (name, shape) of the variables in the checkpoint; None where it lacks the object.
        mine: (name, shape) of those of this program.

    Returns:
        A line for each difference.
    """
    if saved is None:
        return [f"it has no {part}"]
    if [tuple(shape) for _, shape in saved] == [tuple(shape) for _, shape in mine]:
        return []
    before, now = dict(saved), dict(mine)
    if len(saved) == len(mine) and before.keys() != now.keys():
        pairs = [(name, was, (other, shape)) for (name, shape), (other, was) in zip(mine, saved, strict=True)]
        return [
            f"{part}: {name} has shape {_shape(shape)}, {other} in the checkpoint {_shape(was)}"
            for name, was, (other, shape) in pairs
            if tuple(was) != tuple(shape)
        ]
    return [
        *(
            f"{part}: {name} has shape {_shape(now[name])}, in the checkpoint {_shape(before[name])}"
            for name in now
            if name in before and tuple(before[name]) != tuple(now[name])
        ),
        *(f"{part}: {name} {_shape(now[name])} is not in the checkpoint" for name in now if name not in before),
        *(f"{part}: the checkpoint also has {name} {_shape(before[name])}" for name in before if name not in now),
    ]


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"
