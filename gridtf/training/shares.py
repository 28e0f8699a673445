"""A member's part of the training data."""

from __future__ import annotations

from contextlib import suppress
from numbers import Number
from typing import Any

from gridtf.errors import GridtfError

_ENDLESS = -1  # tf.data.INFINITE_CARDINALITY: a random order is then as good as another one


def part(data: Any, rank: int, members: int) -> Any:
    """Take every n-th example; see Group.share.

    Args:
        data: Arrays, nested in dicts, lists and tuples, a dataset, or None.
        rank: Of the first example.
        members: n.

    Raises:
        GridtfError: When a member would have none, or the data cannot be divided, or has another order in each member.
    """
    if data is None:
        return None
    if isinstance(data, dict):
        return {key: part(each, rank, members) for key, each in data.items()}
    if isinstance(data, list | tuple) and not all(isinstance(each, Number | str | bytes) for each in data):
        parts = [part(each, rank, members) for each in data]
        return parts if isinstance(data, list) else tuple(parts)
    try:
        if hasattr(type(data), "shard"):  # tf.data.Dataset; its length may be unknown (-2)
            _check(int(data.cardinality()), members)
            if members > 1 and int(data.cardinality()) != _ENDLESS and _shuffled(data):
                raise GridtfError(
                    "group.share(): this dataset is shuffled without a seed, in another order in each task",
                    why="some elements would be trained twice, and others not at all",
                    hint="group.share(dataset).shuffle(…), or before it shuffle(…, seed=1), list_files(…, seed=1)",
                )
            return data.shard(members, rank)
        if isinstance(data, str) or hasattr(type(data), "num_batches"):
            raise TypeError  # the name of a file, and a PyDataset of Keras, which makes batches by their number
        _check(len(data), members)
        return data[rank::members]
    except TypeError:
        raise GridtfError(
            f"group.share() cannot divide data of type {type(data).__name__}",
            hint="give it arrays or a tf.data.Dataset, or let each task read its own files, by group.rank",
        ) from None


def _shuffled(dataset: Any) -> bool:
    """Whether its elements come in an order that differs between processes: TensorFlow has no public way to tell."""
    seeds: list[Any] = [getattr(dataset, name, None) for name in ("_seed", "_seed2")]
    with suppress(TypeError):  # in a graph
        if type(dataset).__name__ == "_ShuffleDataset" and None not in seeds and not any(map(int, seeds)):
            return True
    return any(map(_shuffled, getattr(dataset, "_inputs", list)()))


def _check(examples: int, members: int) -> None:
    if 0 <= examples < members:
        raise GridtfError(
            f"group.share(): {examples} examples (or batches) for {members} tasks",
            hint="start fewer tasks, or divide the dataset before batch()",
        )
