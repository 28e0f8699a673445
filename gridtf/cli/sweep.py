"""gridtf sweep: one job array of the rows of a job file's [sweep]; and the table of a sweep."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.cli import output, tasktable
from gridtf.cli.common import configured, new_parser, sweep_of
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.options import Table
from gridtf.text import counted, duration, plain, toml

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.job import Job
    from gridtf.login.sweeps import Row

_SHOWN = 3  # rows of a sweep that are shown before the last one


def parser(table: Table | None = None, **more: Any) -> Parser:
    examples = ("gridtf.toml", "gridtf.toml --at-once 4 --wait", "gridtf.toml --pack 4 --dry-run")
    made = new_parser("sweep", "[JOBFILE] [options] -- command …", examples, **more)
    add_sweep_options(made)
    made.add_argument("--wait", action="store_true", help="wait until all have ended; 0 if all have completed")
    made.add_argument("--quiet", action="store_true", help="print the job's id alone; with --wait its verdict")
    made.add_argument("--dry-run", action="store_true", help="submit nothing, like gridtf render")
    made.add_argument("--json", action="store_true", help="print JSON")
    add_job_options(made, schedulers.job_options() if table is None else table)
    made.set_defaults(follow=False)
    return made


def add_sweep_options(parser: Parser) -> None:
    """Add the options that only a sweep has."""
    at_once = "elements that run at once (default: 10; on this machine as many as it has CPUs for)"
    parser.add_argument("--at-once", metavar="N", type=int, help=at_once)
    parser.add_argument("--pack", metavar="N", type=int, default=1, help="elements that share one host and allocation")


def run(arguments: Namespace) -> int:
    from gridtf.cli import submit

    def configure() -> tuple[Configured, Sweep]:
        given = configured(arguments)
        return given, sweep_of(given, arguments)

    return submit.carry_out(arguments, configure)


def about(made: Sweep) -> list[str]:
    """Lines on a sweep for `gridtf render`."""
    packed = f", {made.pack} on a host" if made.pack > 1 else ""
    numbers = [*range(1, len(made.rows) + 1)]
    shown = numbers if len(numbers) <= _SHOWN + 1 else [*numbers[:_SHOWN], numbers[-1]]
    lines = [f"sweep          {counted(len(numbers), 'element')}, {made.at_once} at once{packed}"]
    for number in shown:
        lines += ["  …"] if number > _SHOWN + 1 else []
        words = [f"{name}={_text(value)}" for name, value in made.rows[number - 1].items()]
        lines.append(f"  {made.number(str(number))}: {', '.join(words)}")
    return lines


# --- the table


def show(job: Job, *, by: str | None, form: str, states: Collection[str] | None = None) -> int:
    """Print the table of a sweep.

    Args:
        by: As for outcome.ordered; None: by number.
        form: ``table``, ``csv`` or ``json``.
        states: Only elements in these states; None: all.

    Returns:
        The exit code.
    """
    from gridtf.cli.show import as_csv, as_json
    from gridtf.login import sweeps
    from gridtf.observe.outcome import ordered

    rows = [row for row in sweeps.rows(sweeps.first_of(job)) if states is None or row.state in states]
    rows, name, best = ordered([(row, row.values) for row in rows], by) if by else (rows, "", "")
    if form == "json":
        output.write(f"{as_json(rows)}\n")
    elif form == "csv":
        output.write(as_csv(*_csv(rows)))
    else:
        output.write(f"{_table(rows, name, best, output.width())}\n")
    return 0


def _table(rows: Sequence[Row], by: str, best: str, width: int | None) -> str:
    names = dict.fromkeys(name for row in rows for name in row.params)
    values = dict.fromkeys(value for row in rows for value in row.values)
    lines = []
    for row in rows:
        told = {name: row.values[name] for name in values if name in row.values}
        line = {"ELEMENT": str(row.element), "JOB": row.job_id}
        line |= {name: _text(row.params.get(name, "")) for name in names}
        line["STATE"] = row.state
        for name in values:
            line[f"LAST {name}"] = f"{told[name].last:.6g}" if name in told else "-"
            if name == by:
                word = "LEAST" if best == "least" else "MOST"
                line[f"{word} {name}"] = f"{getattr(told[name], best):.6g}" if name in told else "-"
        line["TIME"] = duration(row.seconds) if row.seconds is not None else "-"
        line["COST"] = _cost(row.cost)
        line["WHY"] = row.reason
        lines.append({name: plain(text) for name, text in line.items()})
    if not any(row.reason for row in rows):
        for line in lines:
            del line["WHY"]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    dispensable = ("COST", "JOB", "TIME", *(f"LAST {name}" for name in values if name != by))
    return f"{tasktable.fitting(lines, dispensable, 'WHY', width)}\n\n{counted(len(rows), 'element')}: {total}"


def _cost(cost: Mapping[str, float]) -> str:
    """What an element had, as time: of its GPUs, else of its CPUs, else of its hosts."""
    for unit, word in (("gpu", "GPU"), ("cpu", "CPU"), ("host", "host")):
        if seconds := cost.get(f"{unit}_seconds"):
            return f"{seconds / 3600:.3g} {word} h"
    return "-"


def _csv(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, object]]]:
    """Columns and rows."""
    names = dict.fromkeys(name for row in rows for name in row.params)
    values = dict.fromkeys(value for row in rows for value in row.values)
    kinds, costs = ("last", "least", "most", "step"), ("host_seconds", "cpu_seconds", "gpu_seconds")
    params, reported = ([f"params.{name}" for name in names], [f"{kind}.{value}" for value in values for kind in kinds])
    columns = ["element", "job_id", *params, "state", *reported, "seconds", *costs, "reason", "run_dir"]
    made = [
        {
            **{name: getattr(row, name) for name in columns if name in row._fields},
            **{f"params.{name}": value for name, value in row.params.items()},
            **{f"{kind}.{name}": getattr(value, kind) for name, value in row.values.items() for kind in kinds},
            **row.cost,
        }
        for row in rows
    ]
    return columns, made


def _text(value: object) -> str:
    return value if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else toml(value)
