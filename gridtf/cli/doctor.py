"""gridtf doctor and gridtf init: what this site offers to jobs, what is amiss, and a file of its settings."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf import schedulers
from gridtf.cli import output, style
from gridtf.cli.common import as_ctrl_c, new_parser
from gridtf.errors import GridtfError, OutputError, UsageError
from gridtf.findings import Examination, Finding, Level, Setting, result
from gridtf.jobspec import config
from gridtf.jobspec.arguments import Parser, add_job_options
from gridtf.jobspec.layers import Given
from gridtf.jobspec.options import OPTIONS, Table
from gridtf.run.rundir import here
from gridtf.text import counted, hanging, plain

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_NEEDED = ("scheduler", "configuration")
_WIDTH = len(Level.FAILURE)
_STYLES = {Level.OK: "good", Level.WARNING: "warn", Level.FAILURE: "bad"}
_TO_SEND = "gridtf-conformance.json"
_TO_WRITE = re.compile(r"\bwrite \w+ = ")


def parser_doctor(table: Table | None = None, **more: Any) -> Parser:
    examples = (
        *("", "--probe", "--probe --nodes 4 --partition gpu --time 5", "--conformance --gpus-per-node 4"),
        "--write /etc/gridtf/config.toml",
    )
    usage = "[--conformance | --probe [--end]] [--write FILE] [options of submit]"
    made = new_parser("doctor", usage, examples, json=True, **more)
    made.add_argument(
        "--probe",
        action="store_true",
        help="submit a job of a minute whose hosts (2, or --nodes) measure files, network and GPUs",
    )
    made.add_argument(
        "--end",
        action="store_true",
        help="also measure how the scheduler ends a job: which signals tasks receive, and how long before they are "
        "killed",
    )
    made.add_argument(
        "--conformance",
        action="store_true",
        help="try what gridtf promises by short jobs on 2 hosts (or --nodes), in at most 15 minutes, and write "
        f"{_TO_SEND}, which names no host, to send",
    )
    made.add_argument("--write", metavar="FILE", help="write the settings that jobs need here to a new file")
    add_job_options(made, schedulers.job_options() if table is None else table, jobfile="")
    return made


def run_doctor(arguments: Namespace) -> int:
    if arguments.command is not None:
        raise UsageError("gridtf doctor takes no command", hint="see `gridtf doctor --help`")
    if arguments.end and not arguments.probe:
        raise UsageError("--end is a measurement of the probe", hint="gridtf doctor --probe --end")
    if arguments.conformance and arguments.probe:
        raise UsageError("--probe and --conformance are two commands", hint="gridtf doctor --conformance")
    file = Path(arguments.write) if arguments.write is not None else None
    probe: Probe | None = None
    if arguments.probe or arguments.conformance:
        as_ctrl_c()
        tried, probed = partial(_tried, as_json=arguments.json), partial(_probed, end=arguments.end)
        probe = probed if arguments.probe else tried
    return _run(file, as_json=arguments.json, given=arguments.given, probe=probe)


def parser_init(**more: Any) -> Parser:
    made = new_parser("init", "[--scheduler NAME] [--json]", ("",), json=True, **more)
    made.add_argument(
        "--scheduler", metavar="NAME", help="the scheduler that jobs go to, as of submit: local, slurm, sge"
    )
    made.description = f"{made.description}\nThe same as gridtf doctor --write ~/.config/gridtf/config.toml."
    return made


def run_init(arguments: Namespace) -> int:
    file = _user_file()
    if file is None:
        hint = "write to a file of your choice: gridtf doctor --write FILE"
        raise UsageError("this user has no home folder", hint=hint)
    named = arguments.scheduler
    given = [(option, "--scheduler", named) for option in OPTIONS if option.key == "scheduler" and named is not None]
    return _run(file, as_json=arguments.json, given=given)


# What jobs have found out as well, and what of it the site can send.
Probe = Callable[[Examination, Given, Mapping[str, str]], tuple[Examination, Mapping[str, object] | None]]


def _user_file() -> Path | None:
    return next((path for path, _, is_site in config.general_files(os.environ) if not is_site), None)


def _run(file: Path | None, *, as_json: bool, given: Given = (), probe: Probe | None = None) -> int:
    """Examine, print, and write a file if there is one to write.

    Args:
        file: The file to write; None: none.
        as_json: Whether to print JSON.
        given: The options of jobs on the command line.
        probe: Adds what a job finds out; None: none is submitted.

    Returns:
        The exit code.
    """
    from gridtf.doctor import login, settings

    own = _user_file()
    for_all = file is not None and file.absolute() != own
    environ: Mapping[str, str] = os.environ
    if file is not None:
        _refuse_existing(file, is_own=not for_all)
    if for_all:  # what this user has set is no default of the site
        environ = {**environ, "XDG_CONFIG_HOME": os.devnull}
        if own is not None and os.path.lexists(own):
            output.message(f"gridtf: {own} is left out of account, since {file} is for all users")
    found = login.examine(environ, here(), given)
    found, sent = probe(found, given, environ) if probe is not None else (found, None)
    if for_all:
        found = found.replace(settings=settings.for_all(found.settings))
    failed = {finding.check for finding in found.failures}
    # without the scheduler's answer, or with a file that is not valid, the missing settings are not known
    unknown = [check for check in _NEEDED if check in failed]
    written: Path | None = None
    problem: GridtfError | None = None
    if file is not None and not unknown:
        about = f"Defaults for {'all ' if for_all else ''}jobs of gridtf, as found on {os.uname().nodename}."
        try:
            _write(file, settings.text(found.settings, about, limits=for_all))
            written = file
        except GridtfError as error:  # the findings are printed all the same
            problem = error
    if as_json:
        output.write(f"{_as_json(found, written, sent)}\n")
    else:
        width = output.width()
        lines = _lines(found.findings, width) + ([] if file is not None else _where(found, own, width))
        output.write(_text(lines))
    if problem is not None:
        raise problem
    if file is not None:
        output.message(_outcome(file, found.settings, unknown))
    return 1 if failed else 0


def _probed(
    found: Examination, given: Given, environ: Mapping[str, str], *, end: bool
) -> tuple[Examination, Mapping[str, object]]:
    """Add what a probe finds; what its hosts have measured is better than what this host can tell."""
    from gridtf.doctor import login, probe

    if found.failures:
        _say("no probe is submitted until the failures are fixed")
    else:
        seen = probe.probe(probe.configured(_words(found, given), environ), end=end, say=_say)
        checks = {finding.check for finding in seen.findings}
        if "probe.job" in checks:  # hosts that do not see the run directory are a reason of it, and are named there
            checks.add("run_root.shared")
        rest = [finding for finding in found.findings if finding.check not in checks]
        found = Examination((*rest, *seen.findings), (*found.settings, *seen.settings))
    return found, _result(found, login.look(environ, here(), given).scheduler)


def _tried(
    found: Examination, given: Given, environ: Mapping[str, str], *, as_json: bool
) -> tuple[Examination, Mapping[str, object] | None]:
    """What short jobs have shown in place of what this host can tell; it is also written to a file."""
    from gridtf.cli import show
    from gridtf.doctor import conformance, probe

    if found.failures:
        _say("no job is submitted until the failures are fixed")
        return found, None
    try:  # before a quarter of an hour of work
        new = not os.path.lexists(_TO_SEND)
        Path(_TO_SEND).open("ab").close()
        if new:
            Path(_TO_SEND).unlink()
    except OSError as error:
        hint = "run it in a folder that you can write to"
        raise OutputError(f"cannot write {_TO_SEND}: {error.strerror}", hint=hint) from None
    seen, result = conformance.conformance(probe.configured(_words(found, given), environ), _say)
    if result is None:
        _say(f"{_TO_SEND} is not written")
        output.write(f"{_as_json(seen, None, None)}\n" if as_json else _text(_lines(seen.findings, output.width())))
        raise KeyboardInterrupt
    try:
        Path(_TO_SEND).write_text(f"{show.as_json(result)}\n", encoding="utf-8")
        advice = (
            "please send it with an issue" if result["passed"] else "mend the set-up, and try again, before you send it"
        )
        _say(f"{_TO_SEND} is written; it names no host, user, path or job: {advice}")
    except OSError as error:  # the findings are printed all the same
        _say(f"cannot write {_TO_SEND}: {error.strerror}")
    return seen.replace(settings=found.settings), result


def _say(line: str) -> None:
    output.message(f"gridtf: {plain(line)}")


def _words(found: Examination, given: Given) -> list[str]:
    """The options of a job that is submitted to look at the site: what is proposed, and above it what is given."""
    # it has a command and a walltime of its own; a list that is proposed begins with what is given
    for_all_jobs = [setting for setting in found.settings if not setting.example and not setting.table]
    proposed = [setting for setting in for_all_jobs if setting.key != "time"]
    left_out = ("entry", "args", *(setting.key for setting in proposed if isinstance(setting.value, list)))
    of_job = [row for row in given if row[0].key not in left_out]
    return [*_as_options(proposed), *(flag if value is None else f"{flag}={value}" for _, flag, value in of_job)]


def _as_options(settings: Sequence[Setting]) -> Iterator[str]:
    for setting in settings:
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        yield from (f"--{setting.key.replace('_', '-')}={value}" for value in values)


def _result(found: Examination, scheduler: Scheduler | None) -> Mapping[str, object]:
    """What this site can send of the examination: which checks had a failure, without their texts."""
    outcomes = {finding.check: True for finding in found.findings} | {wrong.check: False for wrong in found.failures}
    return result(scheduler.title if scheduler else "", scheduler.login.version() if scheduler else "", outcomes)


def as_json() -> str:
    """What ``gridtf doctor --json`` prints here."""
    from gridtf.doctor import login

    return _as_json(login.examine(os.environ, here(), ()), None, None)


def _as_json(found: Examination, written: Path | None, sent: Mapping[str, object] | None) -> str:
    from gridtf.cli.show import as_json

    return as_json({"findings": found.findings, "settings": found.settings, "written": written, "result": sent})


def _lines(findings: Sequence[Finding], width: int | None) -> list[str]:
    """The findings as lines, with the hint below each and the numbers at the end. width: columns of the terminal."""
    checks = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        line = f"{finding.level:<{_WIDTH}}  {finding.check:<{checks}}  {plain(finding.message)}"
        level = style.style(finding.level, _STYLES[finding.level])
        lines.append(level + hanging(line, width, _WIDTH + checks + 4).removeprefix(finding.level))
        if finding.hint:
            lines.append(hanging(f"{'':<{_WIDTH}}    {plain(finding.hint)}", width, _WIDTH + 4))
    counts = {level: sum(finding.level == level for finding in findings) for level in Level}
    return [*lines, f"{counted(counts[Level.FAILURE], 'failure')}, {counted(counts[Level.WARNING], 'warning')}"]


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _where(found: Examination, own: Path | None, width: int | None) -> list[str]:
    """In which file to write the lines of the hints; empty without such lines."""
    keys = dict.fromkeys(setting.key for setting in found.settings if not setting.example)
    keys.pop("scheduler", None)  # of an option, which init would have to be given as well
    if own is None or not any(_TO_WRITE.search(finding.hint) for finding in found.findings):
        return []
    line = f"the lines to write belong in {own}, above its first [table]"
    if keys and not os.path.lexists(own):
        line = f"gridtf init writes {', '.join(keys)} to {own}"
    return [hanging(plain(line), width, 2)]


def _outcome(file: Path, settings: Sequence[Setting], unknown: Sequence[str]) -> str:
    if unknown:
        return f"gridtf: {file} is not written: fix the failure of {' and '.join(unknown)} first"
    keys = [setting.key for setting in settings if not setting.example]
    sets = f"sets {', '.join(dict.fromkeys(keys))}" if keys else "has only examples: jobs need no settings here"
    return f"gridtf: {file} is written; it {sets}"


def _refuse_existing(file: Path, *, is_own: bool = False) -> None:
    if os.path.lexists(file):
        if is_own:
            from gridtf.doctor import login

            _, findings = login.configuration(os.environ, here())
            wrong = (finding for finding in findings if finding.level == Level.FAILURE)
            if (finding := next(wrong, None)) and finding.message.startswith(f"{file}"):
                hint = f"correct that line{f' ({finding.hint})' if finding.hint else ''}, or move the file away"
                raise UsageError(f"{file} exists, and is not valid", why=finding.message, hint=hint)
        hint = "compare with a new one: gridtf doctor --write new.toml; or move it away first"
        raise UsageError(f"{file} exists, and is left as it is", hint=hint)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            try:
                opened.write(text)
                opened.flush()
            except OSError:
                file.unlink()  # half of a file would be read at the next submission
                raise
    except FileExistsError:
        _refuse_existing(file)
        raise GridtfError(f"cannot make the folder {file.parent}: a file has that name") from None
    except OSError as error:
        raise GridtfError(f"cannot write {file}: {error.strerror}") from None
