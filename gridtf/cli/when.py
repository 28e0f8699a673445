"""gridtf when: when a job would start on each partition, with other shapes; or when one that waits is expected to."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

from gridtf import files, schedulers
from gridtf.cli import output, show, tasktable
from gridtf.cli.common import add_like, configured, new_parser
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.jobfile import JOB_FILE
from gridtf.jobspec.options import Table
from gridtf.jobspec.units import format_walltime
from gridtf.login import when
from gridtf.login.job import find
from gridtf.login.when import Forecast, Row, clock
from gridtf.run.rundir import here
from gridtf.states import JobState
from gridtf.text import counted, plain
from gridtf.values import as_dict

_JOBFILE = "a gridtf.toml; or a job that waits: its run directory, its id or its name"
_LISTS = ("partition", "nodes", "time")  # several values of these are separated by commas
_INNER = {"estimate", "chosen", "wait"}  # what --json leaves out
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
    if not (named or arguments.command or files.is_file(here() / JOB_FILE)):
        arguments.command = ["true"]  # it is the request that counts
    given = [(option, flag, _listed(option.key, text)) for option, flag, text in arguments.given]
    explicit = any(option.key == "partition" for option, _, _ in given)
    if not explicit:
        table = schedulers.job_options()
        given.insert(0, (next(option for option in table if option.key == "partition"), "--partition", "auto"))
    arguments.given = given
    forecast = Forecast(everything=True)
    configured(arguments, forecast=forecast)
    now = time.time()
    if arguments.json:
        told = [{**as_dict(row.replace(chosen={})), **as_dict(row.estimate)} for row in forecast.rows]
        output.write(f"{show.as_json([{key: row[key] for key in row if key not in _INNER} for row in told])}\n")
        return 0
    rows = [row for row in forecast.rows if not row.estimate.never]
    if rows and not explicit and (left := len(forecast.rows) - len(rows)):
        never = f"{counted(left, 'row')} left out, since the job can never run so"
        output.message(f"gridtf: {never}; --partition NAME tells why")
    output.write(f"{_table(rows if rows and not explicit else forecast.rows, now)}\n")
    if any(row.expected for row in forecast.rows):
        output.message(f"gridtf: {_SCALED}")
    return 0


def _listed(key: str, text: str | None) -> str | None:
    """A list of values as what auto chooses from."""
    several = text and key in _LISTS and ("," in text or key == "partition") and not text.startswith("auto")
    return f"auto:{text}" if several else text


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
