"""Tables of the monitor: columns that fit the terminal, sparklines in the space that is left, an order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from gridtf.monitor.charts import sparkline
from gridtf.monitor.lines import Line, fit
from gridtf.text import columns as columns_of
from gridtf.values import Value

_GAP = 2  # columns between two columns of a table
_LEAST, _GOOD, _MOST = 4, 8, 16  # columns of the terminal for a sparkline
_RANK = 8  # columns of a higher rank are left out where sparklines would have less than a good length


class Column(Value):
    """A column of a table.

    Attributes:
        title: Its heading.
        rank: On a narrow terminal columns with the highest rank are left out first.
        least: How wide it is at least, so that a longer number does not move the rest.
        top: The value at which a sparkline in it is full; None: the largest of all rows, but at least 1.
        number: Whether it has numbers, which stand at the right; the largest come first when it is sorted by.
    """

    title: str
    rank: int
    least: int = 0
    top: float | None = None
    number: bool = True


class Cell(Value):
    """What a row has in a column.

    Attributes:
        text: What is shown.
        key: What the row is sorted by; None: it comes last.
        style: The style of the text.
        trend: Values of a sparkline, oldest first.
    """

    text: str
    key: float | str | None = None
    style: str = ""
    trend: tuple[float | None, ...] = ()


class Row(Value):
    """A row of a table.

    Attributes:
        name: Tells it from other rows.
        cells: Title of a column -> what it has there; a column that no row has is not shown.
    """

    name: str
    cells: Mapping[str, Cell]


def ordered(rows: Sequence[Row], title: str, *, backwards: bool) -> list[Row]:
    """Sort rows.

    Args:
        rows: In their usual order, which equal ones keep.
        title: The column to sort by; rows that have nothing there come last.
        backwards: Whether the largest come first.
    """

    keys = [row.cells[title].key if title in row.cells else None for row in rows]
    known = [(key, row) for key, row in zip(keys, rows, strict=True) if key is not None]
    unknown = [row for key, row in zip(keys, rows, strict=True) if key is None]
    return [row for _, row in sorted(known, key=itemgetter(0), reverse=backwards)] + unknown


def titles(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns that some row has."""
    return tuple(column.title for column in columns if any(column.title in row.cells for row in rows))


class Layout(Value):
    """How a table fits a terminal.

    Attributes:
        columns: The columns that are shown, from left to right.
        widths: Title -> columns of the terminal for its text.
        trend: Columns of the terminal for each sparkline, with the blank before it; 0: none.
        tops: Title -> the value of a full sparkline.
    """

    columns: tuple[Column, ...]
    widths: Mapping[str, int]
    trend: int
    tops: Mapping[str, float]


def layout(columns: Sequence[Column], rows: Sequence[Row], columns_there: int) -> Layout:
    """Choose the columns that fit, and give the sparklines what is left.

    Args:
        columns: All columns.
        rows: All rows, also those that are not shown now.
        columns_there: Columns of the terminal.
    """
    there = {*titles(columns, rows)}
    shown = [column for column in columns if column.title in there]
    widths = {
        column.title: max(
            column.least,
            len(column.title) + 1,  # the mark of the column that is sorted by
            *(columns_of(row.cells[column.title].text) for row in rows if column.title in row.cells),
        )
        for column in shown
    }

    def taken() -> int:
        return sum(widths[column.title] + _GAP for column in shown) - _GAP

    def spare() -> int:
        """The columns of the terminal for each sparkline."""
        return (columns_there - taken()) // max(1, sum(column.title in tops for column in shown))

    tops = {column.title: top for column in shown if (top := _top(column, rows))}
    while len(shown) > 1 and taken() > columns_there:
        shown.remove(max(shown, key=_rank))
    while tops and spare() <= _GOOD and (last := max(shown, key=_rank)).rank > _RANK:
        shown.remove(last)
    return Layout(tuple(shown), widths, min(spare(), _MOST + 1) if spare() > _LEAST else 0, tops)


def _rank(column: Column) -> int:
    return column.rank


def _top(column: Column, rows: Sequence[Row]) -> float | None:
    """The value of a full sparkline; None for a column without."""
    cells = (row.cells[column.title] for row in rows if column.title in row.cells)
    largest = max((value for cell in cells for value in cell.trend if value is not None), default=None)
    return None if largest is None else column.top or max(1.0, largest)


def heading(table: Layout, title: str, *, backwards: bool) -> Line:
    """The headings, with a mark at the column that rows are sorted by.

    Args:
        table: How the table fits.
        title: That column.
        backwards: Whether the largest come first.
    """
    parts = []
    for column in table.columns:
        mark = ("▼" if backwards else "▲") if column.title == title else ""
        trend = table.trend if column.title in table.tops else 0
        parts.append(fit(column.title + mark, table.widths[column.title], right=column.number) + " " * trend)
    return (((" " * _GAP).join(parts).rstrip(), "bold"),)


def row_line(table: Layout, row: Row, style: str = "") -> Line:
    """A row of a table.

    Args:
        table: How the table fits.
        row: The row.
        style: The style of all of it, in place of those of its cells.
    """
    parts: list[tuple[str, str]] = []
    for column in table.columns:
        cell = row.cells.get(column.title, Cell(""))
        parts.append((fit(cell.text, table.widths[column.title], right=column.number), style or cell.style))
        if table.trend and column.title in table.tops:
            chart = sparkline(cell.trend, table.trend - 1, table.tops[column.title])
            parts.append((f" {chart}", style or "curve"))
        parts.append((" " * _GAP, style))
    return tuple(parts[:-1])
