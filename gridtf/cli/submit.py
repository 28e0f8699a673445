"""gridtf submit, and gridtf run for a job in the current allocation or on this machine."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.cli import output
from gridtf.cli.common import add_like, add_raw, configured, new_parser, steps_of
from gridtf.errors import UsageError
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.jobfile import JOB_FILE
from gridtf.jobspec.options import Table
from gridtf.jobspec.placeholders import MEANINGS, OF_A_JOB
from gridtf.text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridtf.jobspec.config import Configured
    from gridtf.jobspec.sweep import Sweep
    from gridtf.login.job import Job

LAYERS = """\
Options can also be set in a file, as nodes = 2 or, for tasks, [tasks.ps] count = 2, and in the environment. In order
of precedence: --nodes 2, GRIDTF_SUBMIT_NODES=2, JOBFILE, ~/.config/gridtf/config.toml, the site's
/etc/gridtf/config.toml. Set-up lines of all of them add up. ./gridtf.toml is the default JOBFILE when the command
line does not say what to run; words after -- that begin with a dash are added to its command."""

PLACEHOLDERS = "placeholders in the command and in --env, replaced for each task:\n" + "".join(
    f"  {f'{{{name}}}':<24}{meaning}\n" for name, meaning in {**MEANINGS, **OF_A_JOB}.items()
)


def parser_run(table: Table | None = None, **more: Any) -> Parser:
    examples = ("-- python train.py", "gridtf.toml", "--ps 2 -- python train.py     (inside salloc: on its hosts)")
    made = new_parser("run", "[JOBFILE] [options] -- command …", examples, **more)
    made.add_argument("--quiet", action="store_true", help="do not print what its tasks print")
    add_raw(made)
    add_job_options(made, schedulers.job_options() if table is None else table)
    return made


def run_run(arguments: Namespace) -> int:
    from gridtf.bootstrap import main
    from gridtf.jobspec.config import Use

    given = configured(arguments, Use.HERE)
    if arguments.quiet:
        return main.run(given, os.environ)
    from gridtf.cli import runbeside

    return runbeside.follow(lambda begun: main.run(given, os.environ, begun), raw=arguments.raw)


def parser_submit(table: Table | None = None, **more: Any) -> Parser:
    examples = (
        "--ps 1 --workers 2 --wait -- python train.py --epochs 3",
        "--nodes 2 --gpus-per-node 4 --time 2:00:00 --entry train:main",
        "gridtf.toml --workers 8",
    )
    made = new_parser("submit", "[JOBFILE] [options] -- command …", examples, **more)
    made.epilog = f"{made.epilog}\n\n{PLACEHOLDERS}\n{LAYERS}"
    add_like(made)
    add_submit_options(made)
    add_job_options(made, schedulers.job_options() if table is None else table)
    return made


def add_submit_options(made: Parser) -> None:
    """Add the options of a command that submits: what it waits for, and what it prints."""
    made.add_argument("--wait", action="store_true", help="wait until the job has ended; the exit code is the job's")
    made.add_argument("-f", "--follow", action="store_true", help="as --wait, and print what its tasks print meanwhile")
    add_raw(made)
    made.add_argument("--quiet", action="store_true", help="print the job's id alone; with --wait or -f its verdict")
    made.add_argument("--dry-run", action="store_true", help="submit nothing, like gridtf render")
    made.add_argument("--json", action="store_true", help="print JSON")


def run_submit(arguments: Namespace) -> int:
    given = configured(arguments)
    if given.sweep:
        file = arguments.jobfile or JOB_FILE
        raise UsageError(f"{file} has a [sweep]: it is more than one job", hint=f"write: gridtf sweep {file}")
    if given.steps:
        return _submit_steps(arguments, steps_of(arguments, given))
    return carry_out(arguments, lambda: (given, None))


def carry_out(
    arguments: Namespace,
    configure: Callable[[], tuple[Configured, Sweep | None]],
    notes: Callable[[Configured, Job], Sequence[str]] = lambda given, job: (),
) -> int:
    """Submit a job or a sweep, as the options of add_submit_options say.

    Args:
        arguments: The parsed command line.
        configure: Makes the job and, if it is a sweep, its elements.
        notes: Makes further notes for the user, when it is submitted.
    """
    _need_one_form(arguments)
    if arguments.dry_run:
        from gridtf.cli import render

        return render.show(*configure())
    from gridtf.login import submission

    given, swept = configure()
    job = submission.submit(given.spec, given.sources, given.trusted, origin=given.origin, sweep=swept)
    job.notes = (*job.notes, *notes(given, job))
    return announced(job, given, arguments, *(("list",) if swept else ("logs -f", "status")))


def _need_one_form(arguments: Namespace) -> None:
    if arguments.json and arguments.dry_run:
        raise UsageError("--dry-run prints the job script, not JSON", hint="leave out --json, or --dry-run")
    if arguments.json and arguments.follow:
        raise UsageError("--follow prints logs, not JSON", hint="write --wait in its place, or leave out --json")


def announced(job: Job, given: Configured, arguments: Namespace, *next_commands: str) -> int:
    """Tell of a job that has just been submitted, and wait for it where the command line says so.

    Args:
        given: The job as it was given.
        arguments: The command line.
        next_commands: What users may want to do with the job, such as ``status``.

    Returns:
        The exit code.
    """
    for note in job.notes:
        output.message(f"gridtf: {plain(note)}")
    found = job.scheduler == "local" and given.spec.scheduler is None
    scheduler = f"{job.scheduler} (this machine: no other scheduler was found)" if found else job.scheduler
    text = described(job, scheduler)
    waits = arguments.wait or arguments.follow
    if not (arguments.quiet and waits):
        _announce(job, plain(job.id) if arguments.quiet else text, json=arguments.json, aside=waits)
    if arguments.follow and not arguments.quiet:
        from gridtf.cli import follow

        return follow.follow(job, raw=arguments.raw)
    if waits:
        from gridtf.cli import wait

        return wait.follow(job, as_json=arguments.json, quiet=arguments.quiet)
    if output.on_terminal() and not (arguments.quiet or arguments.json):
        name = plain(shlex.quote(job.name))
        commands = [f"gridtf {command} {name}" for command in next_commands]
        output.message(f"{'next':<15}" + f"\n{'':<15}".join(commands))
    return 0


def _submit_steps(arguments: Namespace, steps: Mapping[str, Configured]) -> int:
    """Submit the steps of a job file, and wait for each in their order where that is wanted."""
    from gridtf.login import chains

    _need_one_form(arguments)
    if arguments.dry_run:
        from gridtf.cli import render

        return render.show_steps(steps)
    jobs = list(chains.submit(steps).values())
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        output.message(f"gridtf: {plain(note)}")
    waits = arguments.wait or arguments.follow
    if arguments.json:
        text = f"[{', '.join(map(as_json, jobs))}]"
    else:
        text = "\n".join(plain(job.id) if arguments.quiet else f"{described(job, job.scheduler)}\n" for job in jobs)
    if not (arguments.quiet and waits):
        (output.message if arguments.json and waits else output.result)(text.rstrip())
    codes = []
    for job in jobs if waits else ():
        from gridtf.cli import follow, wait

        if arguments.follow and not arguments.quiet:
            codes.append(follow.follow(job, raw=arguments.raw))
        else:
            codes.append(wait.follow(job, as_json=arguments.json, quiet=arguments.quiet))
    return next(filter(None, codes), 0)


def _announce(job: Job, text: str, *, json: bool, aside: bool) -> None:
    """Print which job was submitted. aside: a verdict follows, and is all that stdout gets where it is JSON."""
    if json and aside:
        output.message(text)
    else:
        output.result(as_json(job) if json else text)


def described(job: Job, scheduler: str) -> str:
    """What is printed of a job that has just been submitted.

    Args:
        scheduler: Its scheduler, in words.
    """
    rows = {"name": job.name, "scheduler": scheduler, "job": job.id, "run directory": str(job.run_dir)}
    return "\n".join(f"{key:<15}{plain(value)}" for key, value in rows.items())


def as_json(job: Job) -> str:
    """The same as JSON."""
    from gridtf.cli import show

    return show.as_json({"name": job.name, "scheduler": job.scheduler, "job_id": job.id, "run_dir": str(job.run_dir)})
