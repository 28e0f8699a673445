"""Lines that several tasks print alike within a moment."""

from __future__ import annotations

import random
from collections.abc import Iterable

from gridtf.observe.folding import Folded, Folding
from gridtf.observe.logs import Source

INF = float("inf")


def shown(rows: Iterable[Folded]) -> list[str]:
    return [f"{''.join(source.name[-1] for source in row.sources)} {row.line}" for row in rows]


def fold(*printed: tuple[int, str, float]) -> list[str]:
    folding = Folding()
    found = []
    for task, line, time in printed:
        found += shown(folding.ready(time))
        folding.add(Source(f"worker:{task}"), line, time)
    return found + shown(folding.ready(INF))


def test_alike_lines_within_a_moment_are_one() -> None:
    assert fold((0, "a", 1.0), (1, "a", 1.1), (2, "a", 1.2)) == ["012 a"]
    assert fold((0, "a", 1.0), (1, "a", 3.0)) == ["0 a", "1 a"]
    assert fold((0, "a", 1.0), (0, "a", 1.0)) == ["0 a", "0 a"]


def test_a_line_comes_later_where_another_task_prints_it_behind_its_own() -> None:
    assert fold((0, "loss 1", 1.0), (0, "epoch 2", 1.0), (1, "loss 3", 1.1), (1, "epoch 2", 1.1)) == [
        "0 loss 1",
        "1 loss 3",
        "01 epoch 2",
    ]


def test_lines_of_each_task_stay_in_their_order() -> None:
    draw = random.Random(7)
    printed = [(draw.randrange(4), draw.choice("abc"), number * 0.05) for number in range(3000)]
    found = fold(*printed)
    for task in range(4):
        own = [line for who, line, _ in printed if who == task]
        assert [line for who, line in (row.split() for row in found) if str(task) in who] == own
    assert len(found) < len(printed)


def test_lines_wait_for_a_moment_and_not_for_ever() -> None:
    folding = Folding()
    folding.add(Source("worker:0"), "a", 1.0)
    assert shown(folding.ready(1.5)) == []
    assert shown(folding.ready(2.5)) == ["0 a"]
    for number in range(5000):
        folding.add(Source("worker:0"), f"{number}", 3.0)
    assert len(shown(folding.ready(3.0))) == 4000
