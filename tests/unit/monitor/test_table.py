"""Tables of the monitor."""

from __future__ import annotations

from gridtf.monitor import table
from gridtf.monitor.lines import text_of
from gridtf.monitor.table import Cell, Column, Row
from gridtf.text import columns

COLUMNS = (
    Column("TASK", 0, number=False),
    Column("STATE", 1, number=False),
    Column("CPU", 2, least=5),
    Column("GPU", 3, top=100.0),
    Column("READ", 9),
)


def row(name: str, cpu: float | None = None, trend: tuple[float, ...] = ()) -> Row:
    cells = {"TASK": Cell(name, name), "STATE": Cell("RUNNING", "RUNNING", "good"), "READ": Cell("1.0M/s", 1.0)}
    return Row(name, {**cells, **({} if cpu is None else {"CPU": Cell(f"{cpu}", cpu, trend=trend)})})


def test_rows_are_sorted_with_those_that_have_nothing_last() -> None:
    rows = [row("a", 1.0), row("b"), row("c", 3.0), row("d", 2.0)]
    assert [one.name for one in table.ordered(rows, "CPU", backwards=True)] == ["c", "d", "a", "b"]
    assert [one.name for one in table.ordered(rows, "CPU", backwards=False)] == ["a", "d", "c", "b"]
    assert [one.name for one in table.ordered(rows, "GPU", backwards=True)] == ["a", "b", "c", "d"]


def test_equal_rows_keep_their_order() -> None:
    rows = [row("b", 1.0), row("a", 1.0), row("c", 1.0)]
    for backwards in (False, True):
        assert [one.name for one in table.ordered(rows, "CPU", backwards=backwards)] == ["b", "a", "c"]


def test_columns_that_no_row_has_are_not_shown() -> None:
    shown = table.layout(COLUMNS, [row("a", 1.0)], 80).columns
    assert [column.title for column in shown] == ["TASK", "STATE", "CPU", "READ"]


def test_narrow_terminals_have_the_most_important_columns() -> None:
    rows = [row("worker:0", 1.0)]
    for space in range(1, 80):
        whole = table.layout(COLUMNS, rows, space)
        line = text_of([table.row_line(whole, rows[0])])
        assert columns(line) <= max(space, len("worker:0")), space
        assert line.startswith("worker:0")
    assert [column.title for column in table.layout(COLUMNS, rows, 19).columns] == ["TASK", "STATE"]


def test_sparklines_take_the_space_that_is_left_and_that_of_columns_of_a_high_rank() -> None:
    rows = [row("worker:0", 1.0, trend=(1.0, 2.0))]
    wide, narrow = table.layout(COLUMNS, rows, 80), table.layout(COLUMNS, rows, 34)
    assert wide.trend == 17
    assert [column.title for column in wide.columns][-1] == "READ"
    assert narrow.trend == 10
    assert [column.title for column in narrow.columns] == ["TASK", "STATE", "CPU"]
    assert text_of([table.row_line(wide, rows[0])]).split()[3] == "▄█"


def test_column_that_rows_are_sorted_by_is_marked() -> None:
    whole = table.layout(COLUMNS, [row("a", 1.0)], 80)
    assert "CPU▼" in text_of([table.heading(whole, "CPU", backwards=True)])
    assert "TASK▲" in text_of([table.heading(whole, "TASK", backwards=False)])
    assert text_of([table.heading(whole, "", backwards=False)]).split() == ["TASK", "STATE", "CPU", "READ"]


def test_selected_row_has_one_style() -> None:
    whole = table.layout(COLUMNS, [row("a", 1.0, (1.0,))], 80)
    assert {style for _, style in table.row_line(whole, row("a", 1.0, (1.0,)), "chosen")} == {"chosen"}
