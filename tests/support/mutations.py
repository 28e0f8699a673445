"""Seeded random changes to valid text, for tests of parsers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

# Text that has upset parsers: characters invalid in names, digits that are not ASCII, huge numbers, brackets.
_PIECES = (
    *("\0", "\n", "\r", "\t", "\x1b[2J", "\x9b", "\u202e", "\ud800", "\udcff", "é", "²", "٣", "\ufeff", "%", "$(x)"),
    *("-", "--", "-1", "0", "00", "1e400", "nan", "inf", "99999999", "9" * 20, "9" * 5000, "(x99999)", "[0-99999]"),
    *("[", "]", "(", ")", "{", "}", "<", ">", ",", ";", ":", "=", ".", "..", "/", "~", "'", '"', "'''", "\\", "#", " "),
)


def inputs(few: int, many: int) -> pytest.MarkDecorator:
    """For tests with an argument ``count``: the number of inputs that they try in a fast run, and in a thorough one."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.thorough)])


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
