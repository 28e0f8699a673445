"""Seeded random changes to valid text, for tests of parsers, and to records.

``MUTATIONS=5000`` in the environment has each test try 5000 inputs, and ``MUTATIONS=5000:7`` other ones, those of the
seed 7.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

# Text that has upset parsers: characters invalid in names, digits that are not ASCII, huge numbers, brackets.
_PIECES = (
    *("\0", "\n", "\r", "\t", "\x1b[2J", "\x9b", "\u202e", "\ud800", "\udcff", "é", "²", "٣", "\ufeff", "%", "$(x)"),
    *("-", "--", "-1", "0", "00", "1e400", "nan", "inf", "99999999", "9" * 20, "9" * 5000, "(x99999)", "[0-99999]"),
    *("[", "]", "(", ")", "{", "}", "<", ">", ",", ";", ":", "=", ".", "..", "/", "~", "'", '"', "'''", "\\", "#", " "),
)

# Values that no record has where these are put.
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**70, 1e308, float("nan"), float("inf"), "", "x", "a\0b", "\ud800", "9" * 5000),
    *("../../x", "/x", "--user=alice", "*", "a\nb", "\x1b[31m", [], {}, [[]], [None], {"": None}, {"a": {}}),
)
_MORE, _, SEED = os.environ.get("MUTATIONS", "").partition(":")


def inputs(few: int, many: int) -> pytest.MarkDecorator:
    """For tests with an argument ``count``: the number of inputs that they try in a fast run, and in a thorough one."""
    counts = [int(_MORE)] if _MORE else [few, pytest.param(many, marks=pytest.mark.thorough)]
    return pytest.mark.parametrize("count", counts)


def record(sample: Any, chosen: random.Random) -> str:
    """The text of a record with random changes."""
    changed = copy.deepcopy(sample)
    for _ in range(chosen.choice((1, 1, 2, 5))):
        found = [(changed, key) for key in _keys(changed)]
        for parent, key in found:
            found += [(parent[key], inner) for inner in _keys(parent[key])]
        if not found:
            break
        parent, key = chosen.choice(found)
        match chosen.randrange(4):
            case 0:
                del parent[key]
            case 1:
                other, name = chosen.choice(found)
                with contextlib.suppress(LookupError):
                    parent[key] = copy.deepcopy(other[name])
            case _:
                parent[key] = copy.deepcopy(chosen.choice(_ODD))
    if chosen.random() < 0.02:
        changed = copy.deepcopy(chosen.choice(_ODD))
    made = json.dumps(changed)
    if chosen.random() < 0.1:
        at = chosen.randrange(len(made) + 1)
        made = made[:at] + chosen.choice(("", "[" * 2000, '"', "\\ud800", "9" * 5000, "é")) + made[at + 1 :]
    return made


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


def text(sample: str, chosen: random.Random) -> str:
    """A text with up to four changes: pieces inserted, removed, doubled or moved."""
    for _ in range(chosen.randrange(5)):
        at, end = sorted(chosen.randrange(len(sample) + 1) for _ in range(2))
        piece = chosen.choice([chosen.choice(_PIECES), chosen.choice(_PIECES), sample[at:end], ""])
        if chosen.random() < 0.5:
            end = min(at + chosen.randrange(4), len(sample))
        sample = sample[:at] + piece + sample[end:]
    return sample


def words(sample: Sequence[str], chosen: random.Random) -> list[str]:
    """A list of words, some of them changed as by text(), removed or doubled."""
    changed = [text(word, chosen) if chosen.random() < 0.4 else word for word in sample]
    for _ in range(chosen.randrange(3)):
        at = chosen.randrange(len(changed) + 1)
        changed[at : at + chosen.randrange(2)] = chosen.sample(changed, min(len(changed), chosen.randrange(2)))
    return changed


def table(sample: Mapping[str, str], chosen: random.Random) -> dict[str, str]:
    """A table with some values changed as by text(), and some removed."""
    return {
        key: text(value, chosen) if chosen.random() < 0.4 else value
        for key, value in sample.items()
        if chosen.random() < 0.9
    }
