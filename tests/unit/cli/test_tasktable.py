"""The table of tasks of gridtf status."""

from __future__ import annotations

import pytest

from gridtf.cli import tasktable
from gridtf.observe.views import HostView, TaskView
from tests.support.states import FAILED, RUNNING
from tests.unit.cli.test_show import GOING

SAMPLE = {"cpu": 7.92, "memory": 3 << 29, "rate": 11.8}
BUSY = TaskView(
    "worker:0",
    "n1",
    RUNNING,
    started=1000.0,
    restarts=2,
    progress={"step": 1200, "values": {}, "time": 1.0},
    gpus=("0", "1"),
    sample=SAMPLE,
    last_line="loss 0.5 and many more words",
)
READ = TaskView(
    "worker:1", "node2", FAILED, 3, started=1000.0, ended=1060.0, sample=SAMPLE, logged={"step": 5, "epoch": 2}
)
HOST = HostView("n1", ("worker:0",), {"gpus": {"0": {"use": 90.0}, "1": {"use": 50.0}, "2": {"use": 0.0}}})
VIEW = GOING.replace(tasks=(BUSY, READ), hosts=(HOST,))


def test_all_columns() -> None:
    heading, first, second = tasktable.tasks(VIEW, 1075.0).splitlines()
    assert heading == (
        "TASK      HOST   GPU  STATE    EXIT  RESTARTS  SINCE       CPU  MEMORY  GPU USE  STEP              RATE"
        "    LAST LINE"
    )
    assert first == (
        "worker:0  n1     0,1  RUNNING  -     2         1 min 15 s  7.9  1.5G    70 %     1200              11.8/s"
        "  loss 0.5 and many more words"
    )
    assert second == (
        "worker:1  node2  -    FAILED   3     -         15 s        -    -       -        epoch 2, 5 (log)  -       -"
    )


def test_columns_in_which_no_task_has_anything_are_left_out() -> None:
    bare = VIEW.replace(tasks=(READ.replace(logged=None),), hosts=())
    assert tasktable.tasks(bare, 1075.0).splitlines()[0].split() == ["TASK", "HOST", "STATE", "EXIT", "SINCE"]


@pytest.mark.parametrize("width", [*range(1, 140, 7), 40, 80, 500])
def test_no_line_is_longer_than_the_terminal_is_wide(width: int) -> None:
    lines = tasktable.tasks(VIEW, 1075.0, width).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= width


def test_narrow_terminals_have_the_most_important_columns() -> None:
    head = tasktable.tasks(VIEW, 1075.0, 40).splitlines()[0].split()
    assert head[:2] == ["TASK", "STATE"]
    assert "STEP" in head
    assert tasktable.tasks(VIEW, 1075.0, 123).splitlines()[1].endswith("loss 0.5 and ma…")
