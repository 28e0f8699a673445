"""gridtf rerun: the job of another one's specification, with changes, from its beginning."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.cli import submit
from gridtf.cli.common import find_job, new_parser
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.options import Table

if TYPE_CHECKING:
    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.sweep import Sweep

_ABOUT = """\
Every value that is not given here is that of JOB, whatever files and GRIDTF_SUBMIT_ variables say now. Words after --
that begin with a dash are added to its command, others replace it. --dry-run shows where each value comes from."""


def parser(table: Table | None = None, **more: Any) -> Parser:
    examples = ("digits --set epochs=5", "4711 --time 4:00:00 --wait", "digits --code now -- --verbose")
    made = new_parser("rerun", "JOB [options] [-- argument …]", examples, job=True, **more)
    made.epilog = f"{made.epilog}\n\n{_ABOUT}"
    made.add_argument("--code", choices=("now",), help="run the working folder as it is, not the snapshot of JOB")
    made.add_argument("--failed", action="store_true", help="of a sweep: run what has not completed, and nothing else")
    submit.add_submit_options(made)
    add_job_options(made, schedulers.job_options() if table is None else table, jobfile="")
    return made


def run(arguments: Namespace) -> int:
    from gridtf.jobspec.config import Typed
    from gridtf.login import rerun

    job, typed = find_job(arguments), Typed(None, arguments.given, arguments.command)
    code_now = arguments.code == "now"

    def configure() -> tuple[Configured, Sweep | None]:
        if arguments.failed:
            return rerun.failed(job, typed, code_now=code_now)
        return rerun.again(job, typed, code_now=code_now), None

    return submit.carry_out(arguments, configure, rerun.code_notes)
