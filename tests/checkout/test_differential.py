"""scripts/differential: random attempts end as they did in the last release, and it sees another order of ends."""

from __future__ import annotations

import json
import re
from typing import Any

import comparing
import pytest

from tests.support.releases import released

END: dict[str, Any] = {
    "seed": 7,
    "verdict": {"state": "FAILED", "reason": "worker:0 on h0: exit code 3", "hint": ""},
    "stop": {"reason": "worker:0 on h0: exit code 3"},
    "seconds": 6.0,
}


def test_what_differs_is_named() -> None:
    other = {**END, "verdict": {**END["verdict"], "reason": "no heartbeat from host h0"}, "seconds": 8.0}
    assert comparing.differing(END, END) == comparing.differing(END, {**END, "seconds": 6.5}) == []
    assert comparing.differing(END, other) == ["seconds", "verdict.reason"]
    assert comparing.differing(END, {"seed": 7, "error": "KeyError: x"})


def test_only_a_difference_that_is_listed_is_wanted() -> None:
    rows = json.loads(comparing.WANTED.read_text())
    assert all(row["names"] and re.compile(row["old"]) and re.compile(row["new"]) and row["why"] for row in rows)
    other = {**END, "verdict": {**END["verdict"], "reason": "an end that nobody has listed"}}
    assert not comparing.wanted(comparing.differing(END, other), END, other)


@pytest.mark.parametrize("count", [150, pytest.param(3000, id="many")])
def test_attempts_end_as_in_the_last_release_but_for_what_is_listed(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    last = released()
    if last is None:
        pytest.skip("the history of this checkout dates no release")
    assert comparing.compare(last[1], 0, count) == 0, capsys.readouterr().out


def test_each_other_order_of_ends_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert comparing.unseen_orders(0, 2500) == [], capsys.readouterr().out
