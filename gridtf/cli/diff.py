"""gridtf diff: what differs between two runs."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gridtf.cli import output, style
from gridtf.cli.common import job_names, new_parser
from gridtf.jobspec.arguments import Parser
from gridtf.text import columns, duration, hanging, plain

if TYPE_CHECKING:
    from gridtf.report.difference import Change, Difference

_WIDTH = 80  # without a terminal
_OF_LINE = {"+": "good", "-": "bad"}


def parser(**more: Any) -> Parser:
    made = new_parser("diff", "JOB JOB [options]", ("4711 4712", "digits ./gridtf-runs/old --json"), json=True, **more)
    for name in ("first", "second"):
        told = "a run directory, a job id or a name (the newest)"
        made.add_argument(name, metavar="JOB", help=told).completer = job_names  # type: ignore[attr-defined]
    return made


def run(arguments: Namespace) -> int:
    from gridtf.cli import show
    from gridtf.login.job import find
    from gridtf.report.difference import difference
    from gridtf.run import registry

    names = (arguments.first, arguments.second)
    first, second = (find(name).run for name in names)
    for each in (first, second):
        registry.need_one_job(each, "diff")
    found = difference(first, second, names, time.time())
    text = show.as_json(as_record(found)) if arguments.json else shown(found, names, output.width() or _WIDTH)
    output.write(f"{text}\n")
    return 0


def as_record(found: Difference) -> dict[str, object]:
    """What differs, as --json prints it."""
    first, second = ({name: row[name] for name in ("name", "job_id", "run_dir")} for row in found.runs)
    known = {"changes": found.changes, "unknown": found.unknown, "diff": found.diff}
    return {"first": first, "second": second, "same": found.same, **known}


def shown(found: Difference, names: Sequence[str], width: int) -> str:
    """What differs, as text.

    Args:
        found: It.
        names: What the user calls the runs.
        width: Columns; names, single words and the diff of the code may exceed them.
    """
    widest = max(map(columns, names))
    lines = [
        style.style(f"{sign} {plain(name)}", _OF_LINE[sign])
        + " " * (widest - columns(name))
        + f"  {plain(_called(row))}  {style.state(row['state'])}{_lasting(row)}"
        for sign, name, row in zip("-+", names, found.runs, strict=True)
    ]
    alike = []
    for name, changes in found.changes.items():
        diff = found.diff.splitlines() if name == "code" else []
        if changes or diff:
            lines += ["", style.heading(name.upper()), *(line for change in changes for line in _change(change, width))]
            lines += [
                style.style(plain(line), _OF_LINE[line[0]]) if line[:1] in _OF_LINE else plain(line) for line in diff
            ]
        elif name not in found.unknown:
            alike.append(name)
    lines.append("")
    if alike:
        lines.append(hanging(f"the same: {', '.join(alike)}", width, 2))
    lines += [hanging(plain(f"not known: {name}: {why}"), width, 2) for name, why in found.unknown.items()]
    return "\n".join(lines)


def _called(row: dict[str, Any]) -> str:
    return f"{row['name']} ({row['job_id']})" if row["job_id"] else str(row["name"])


def _lasting(row: dict[str, Any]) -> str:
    return "" if row.get("seconds") is None else f", ran for {duration(row['seconds'])}"


def _change(change: Change, width: int) -> Iterator[str]:
    """The lines for something that differs: one, if it has room there."""
    sides = ((change.first, change.first_source), (change.second, change.second_source))
    texts = [plain("-" if value is None else f"{value} ({source})" if source else value) for value, source in sides]
    line = f"  {plain(change.name)}  {texts[0]} -> {texts[1]}"
    if columns(line) <= width:
        yield f"  {plain(change.name)}  {style.style(texts[0], 'bad')} -> {style.style(texts[1], 'good')}"
        return
    yield f"  {plain(change.name)}"
    for sign, text in zip("-+", texts, strict=True):
        yield style.style(hanging(f"    {sign} {text}", width, 6), _OF_LINE[sign])
