"""Which elements of a job array ``-t`` asks for. Forms that qsub of Son of Grid Engine 8.1.9 has taken."""

from __future__ import annotations

import pytest

from gridtf.errors import SpecError
from gridtf.schedulers.sge.directives import array_elements


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ([], ""),
        (["-l gpu=1", "-tc 4"], ""),
        (["-t 5"], "5"),
        (["-t 1-4"], "1 2 3 4"),
        (["-t 3-9:2 -tc 2"], "3 5 7 9"),
        (["-t 1,3"], "1 3"),
        (["-t 1-4", "-t 7-8"], "7 8"),  # the last one holds
    ],
)
def test_the_elements(native: list[str], expected: str) -> None:
    assert array_elements(native) == tuple(expected.split())


@pytest.mark.parametrize("text", ["0-3", "4-1", "a", "1-4:0", "1-", "1-99999999"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        array_elements([f"-t {text}"])
    assert caught.value.key == "native"
    assert caught.value.hint
