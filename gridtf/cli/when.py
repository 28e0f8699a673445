"""gridtf when: when a job would start on each partition, with other shapes; or when one that waits is expected to."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from gridtf import files, schedulers
from gridtf.cli import output, show, tasktable
from gridtf.cli.common import add_like, configured, like_of, new_parser, sweep_of
from gridtf.errors import GridtfError, SpecError
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.config import Configured, Use, forbidden_by_site
from gridtf.jobspec.jobfile import JOB_FILE
from gridtf.jobspec.options import Option, Table
from gridtf.jobspec.units import format_walltime
from gridtf.login import when
from gridtf.login.job import find
from gridtf.login.when import Row, clock
from gridtf.run.rundir import here
from gridtf.states import JobState
from gridtf.text import counted, plain
from gridtf.values import as_dict

_JOBFILE = "a gridtf.toml; or a job that waits: its run directory, its id or its name"
_LISTS = ("partition", "nodes", "time")  # several values of these are separated by commas
_INNER = {"estimate", "wait"}  # what --json leaves out
_SCALED = "the expected end is as long after the start as that job ran, and its rate is taken to grow with the hosts"


def parser(table: Table | None = None, **more: Any) -> Parser:
    examples = ("gridtf.toml", "gridtf.toml --nodes 2,4,8 --time 1h,4h --like digits", "digits")
    made = new_parser("when", "[JOBFILE|JOB] [options] -- command …", examples, json=True, **more)
    add_like(made)
    add_job_options(made, schedulers.job_options() if table is None else table, _JOBFILE)
    return made


def run(arguments: Namespace) -> int:
    named, others = arguments.jobfile, arguments.given or arguments.command
    if named and not others and not named.endswith(".toml") and not files.is_file(here() / named):
        return _of_job(named, as_json=arguments.json)
    if forbidden := forbidden_by_site("when", os.environ):
        raise GridtfError("this site does not allow questions of when a job would start", why=forbidden)
    if not (named or arguments.command or files.is_file(here() / JOB_FILE)):
        arguments.command = ["true"]  # it is the request that counts
    table = {option.key: option for option in schedulers.job_options()}
    listed = {
        option.key: _words(option.key, text) for option, _, text in arguments.given if option.key in _LISTS and text
    }
    explicit, like = "partition" in listed, like_of(arguments)
    others = [row for row in arguments.given if row[0].key not in _LISTS]

    def with_values(values: Mapping[str, str]) -> list[tuple[Option, str, str | None]]:
        return [*others, *((table[key], f"--{key}", text) for key, text in values.items())]

    def configure(values: Mapping[str, str]) -> Configured:
        arguments.given = with_values(values)
        return configured(arguments, like=like, quiet=True)

    arguments.given = with_values({key: words[0] for key, words in listed.items()})
    base = configured(arguments, Use.LOOK, like=like)
    if base.steps:
        output.message(f"gridtf: {named or JOB_FILE} has [steps]: the rows are about the first, {base.steps[0]}")
    elements = lambda given: sweep_of(given, arguments) if given.sweep else None  # noqa: E731
    found, notes = when.forecast(base, listed, configure, elements, like)
    for note in notes:
        output.message(f"gridtf: {note}")
    now = time.time()
    if arguments.json:
        told = [{**as_dict(row), **as_dict(row.estimate)} for row in found]
        output.write(f"{show.as_json([{key: row[key] for key in row if key not in _INNER} for row in told])}\n")
        return 0
    rows = [row for row in found if not row.estimate.never]
    if rows and not explicit and (left := len(found) - len(rows)):
        never = f"{counted(left, 'row')} left out, since the job can never run so"
        output.message(f"gridtf: {never}; --partition NAME tells why")
    output.write(f"{_table(rows if rows and not explicit else found, now)}\n")
    if any(row.expected for row in found):
        output.message(f"gridtf: {_SCALED}")
    return 0


def _words(key: str, text: str) -> list[str]:
    words = [*dict.fromkeys(text.replace(",", " ").split())]
    if not words:
        raise SpecError(key, f"{text!r} has no value", hint="write values with commas between them")
    return words


def _table(rows: list[Row], now: float) -> str:
    cells = [
        {
            "PARTITION": row.partition,
            "NODES": row.nodes,
            "WALLTIME": "" if row.walltime is None else format_walltime(row.walltime),
            "LATEST END": "" if row.latest is None else clock(row.latest, now),
            "EXPECTED END": "" if row.expected is None else clock(row.expected, now),
            "USES": when.hours(row.hours),
            "START": when.when(row, now),
        }
        for row in rows
    ]
    names = [name for name in cells[0] if any(cell[name] for cell in cells)]
    shown = [{name: plain(cell[name]) for name in names} for cell in cells]
    return tasktable.fitting(shown, (), "START", output.width())


def _of_job(named: str, *, as_json: bool) -> int:
    """Print when a job that waits is expected to start."""
    view = find(named).status()
    if as_json:
        told = {"job": view.job_id, "state": view.state, "expected": view.expected, "reason": view.reason}
        output.write(f"{show.as_json(told)}\n")
        return 0
    text = f"it is {view.state}, and does not wait"
    if view.state == JobState.PENDING:
        text, known = "its scheduler does not tell when it starts", view.expected is not None
        text = f"it is expected to start {when.moment(view.expected or 0.0, time.time())}" if known else text
        text += f": {view.reason}" if view.reason else ""
    output.write(f"{plain(f'{view.name} ({view.job_id}): {text}')}\n")
    return 0
