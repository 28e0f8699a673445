"""Error classes, their exit codes, and hints for misspelt words."""

from __future__ import annotations

import pytest

from gridtf import errors
from gridtf.errors import GridtfError, SpecError, nearest


def classes(base: type[GridtfError]) -> set[type[GridtfError]]:
    return {base}.union(*(classes(sub) for sub in base.__subclasses__() if sub.__module__ == errors.__name__))


def test_every_error_has_the_exit_code_that_the_readme_gives() -> None:
    """2 for wrong usage, 1 for everything that fails although it was asked for rightly."""
    codes: dict[int, set[str]] = {}
    for kind in classes(GridtfError):
        codes.setdefault(kind.exit_code, set()).add(kind.__name__)
    assert codes == {
        1: {
            "BadHostError",
            "CleanedUpError",
            "DamagedError",
            "GridtfError",
            "HostError",
            "HostLostError",
            "MaybeSubmittedError",
            "OutOfMemoryError",
            "OutputError",
            "PlacementError",
            "RendezvousError",
            "ReplacedError",
            "RunDirError",
            "SchedulerError",
            "TerminatedError",
        },
        2: {"NotBegunError", "NotFoundError", "SpecError", "UnknownKeyError", "UsageError"},
    }


def test_error_is_at_most_three_lines() -> None:
    assert str(SpecError("nodes", "wrong", why="why", hint="hint")) == "nodes: wrong\nwhy\nhint"
    assert str(GridtfError("wrong")) == "wrong"


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("sumbit", ["submit", "status"], "did you mean submit?"),
        ("SUBMIT", ["submit"], "did you mean submit?"),
        ("evn", ["env", "entry"], "did you mean env?"),
        ("part", ["partition", "pe"], "did you mean partition?"),
        ("stat", ["status", "submit"], "did you mean status?"),
        ("image", ["time", "name"], ""),
        ("quiet", ["queue"], ""),
        ("conda", ["command"], ""),
        ("modules", ["nodes"], ""),
        ("x", ["xyz"], ""),
    ],
)
def test_nearest_word_is_named_only_when_it_is_near(word: str, known: list[str], hint: str) -> None:
    assert nearest(word, known) == hint
