"""The table of options, shared by command line, job file and environment, and the parser made from it. Pure."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gridtf.errors import UsageError, nearest

Key = tuple[str, ...]  # a key as its parts: ("tasks", "ps", "count")


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        key: The JobSpec key that it sets, dotted as in the job file.
        flags: The long one first; ``--no-…`` turns a switch off.
        kind: text, whole (a whole number), size (a whole number, or text that JobSpec parses), seconds, lines
            (repeatable), words (with commas between), variables (repeatable K=V), switch (count 1 or 0) or served_ps.
        metavar: The value in the help; empty for a flag without one.
        help: One line for the help.
        group: Heading in the help.
    """

    key: str
    flags: tuple[str, ...]
    kind: str
    metavar: str
    help: str
    group: str

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it: GRIDTF_SUBMIT_ and the name of a long flag."""
        if self.kind == "served_ps":
            return ()
        longs = (flag[2:] for flag in self.flags if flag.startswith("--") and not flag.startswith("--no-"))
        return tuple(PREFIX + flag.upper().replace("-", "_") for flag in longs)


PREFIX = "GRIDTF_SUBMIT_"

_OF_SUBMIT = ("wait", "dry_run", "json")  # options of the command, not of the job
_NUMBER = re.compile(r"[0-9.e-]+")  # Python takes more, which is more likely a slip: 1_000, +3, inf, ٣

# fmt: off
# columns: key, flags, kind, metavar, help
_TABLE = {
    "what runs": (
        ("entry", "--entry", "text", "MODULE:FUNCTION", "the training loop as a function, instead of a command"),
        ("chdir", "--chdir -D", "text", "DIR", "working folder (default: this one, or the job file's)"),
        ("env", "--env", "variables", "K=V", "set a variable; K alone copies it from here; repeatable"),
        ("setup", "--setup", "lines", "LINE", "shell line to run first, such as 'module load cuda'; repeatable"),
        ("python", "--python", "text", "PROGRAM", "the Python that runs --entry and served tasks"),
    ),
    "tasks": (
        ("tasks.worker.count", "--workers", "whole", "N", "workers (default: as many as there is room for)"),
        ("tasks.ps.count", "--ps", "whole", "N", "parameter servers"),
        ("tasks.chief.count", "--chief --no-chief", "switch", "", "a chief beside the workers"),
        ("tasks.master.count", "--master --no-master", "switch", "", "the same, under TensorFlow 1's name"),
        ("tasks.evaluator.count", "--evaluator --no-evaluator", "switch", "", "an evaluator"),
        ("serve", "--serve", "words", "TYPE[,TYPE]", "gridtf itself serves tasks of type ps, worker"),
        ("serve", "--ps-builtin", "served_ps", "", "the same as --serve ps"),
        ("success_policy", "--success-policy", "text", "all|chief", "whose exit code 0 completes the job"),
    ),
    "what to ask the scheduler for": (
        ("scheduler", "--scheduler", "text", "local|slurm|sge", "default: the one found here, else local"),
        ("name", "--name -J", "text", "NAME", "the job's name"),
        ("nodes", "--nodes -N", "size", "N[-M]", "hosts"),
        ("gpus_per_node", "--gpus-per-node", "whole", "N", "GPUs on each host"),
        ("tasks_per_node", "--tasks-per-node", "whole", "N", "training tasks on each host, if GPUs do not decide it"),
        ("gpus_per_task", "--gpus-per-task", "whole", "N", "GPUs of each training task"),
        ("cpus_per_task", "--cpus-per-task -c", "whole", "N", "CPUs of each task"),
        ("mem_per_task", "--mem-per-task", "size", "SIZE", "memory of each task, such as 8G"),
        ("mem", "--mem", "size", "SIZE", "memory of each host instead, such as 16G"),
        ("time", "--time -t", "size", "TIME", "walltime, such as 2:00:00, 90m or 1-12"),
        ("partition", "--partition -p --queue -q", "text", "NAME", "Slurm's partition, Grid Engine's queue"),
        ("account", "--account -A --project", "text", "NAME", "Slurm's account, Grid Engine's project"),
        ("pe", "--pe", "text", "NAME", "Grid Engine's parallel environment"),
        ("slots", "--slots", "size", "N[-M]", "Grid Engine's slots"),
        ("gpu_resource", "--gpu-resource", "text", "NAME", "the site's name of its GPU resource (default: gpu)"),
        ("native", "--native", "lines", "OPTION", "an option passed to the scheduler unchanged; repeatable"),
    ),
    "places and patience": (
        ("template", "--template", "text", "FILE", "your own template of the job script"),
        ("run_dir", "--run-dir", "text", "DIR", "the run directory; must not exist yet"),
        ("run_root", "--run-root", "text", "DIR", "where run directories are made (default: gridtf-runs)"),
        ("kill_grace", "--kill-grace", "seconds", "S", "from TERM to KILL (default: 5)"),
        ("start_timeout", "--start-timeout", "seconds", "S", "to wait for all hosts and tasks (default: 600)"),
        ("heartbeat_timeout", "--heartbeat-timeout", "seconds", "S", "of silence that make a host lost (default: 30)"),
        ("leader_wait", "--leader-wait", "seconds", "S", "for the other tasks once the leader is done (default: 300)"),
        ("evaluator_wait", "--evaluator-wait", "seconds", "S", "for the evaluator after the training (default: 60)"),
    ),
}
# fmt: on

GROUPS = tuple(_TABLE)
OPTIONS = tuple(
    Option(key, tuple(flags.split()), kind, metavar, text, group)
    for group, rows in _TABLE.items()
    for key, flags, kind, metavar, text in rows
)

# The schedulers' other names for a key: understood in files, too.
ALIASES = {"queue": "partition", "project": "account"}


def by_variable() -> dict[str, Option]:
    """All options by the environment variables that set them."""
    return {variable: option for option in OPTIONS for variable in option.variables}


def read(option: Option, text: str, environ: Mapping[str, str]) -> dict[Key, object]:
    """Read the value of an option. Text that should be a number and is not stays text: JobSpec reports it.

    Args:
        option: A row of the table.
        text: The value as typed.
        environ: Where ``--env K`` finds the value of K.

    Returns:
        Key -> value.

    Raises:
        UsageError: For ``--env K`` when K is not set.
    """
    key = tuple(option.key.split("."))
    if option.kind == "variables":
        name, equals, value = text.partition("=")
        if not equals:
            if name not in environ:
                raise UsageError(
                    f"{name} is not set here", hint=f"a name alone copies its value; else write {name}=VALUE"
                )
            value = environ[name]
        return {(*key, name): value}
    if option.kind == "lines":
        return {key: (text,)}
    if option.kind == "words":
        return {key: tuple(word.strip() for word in text.split(",") if word.strip())}
    if option.kind in ("whole", "size", "switch"):
        return {key: _number(text, int)}
    if option.kind == "seconds":
        return {key: _number(text, float)}
    return {key: text}


def switch(option: Option, flag: str) -> dict[Key, object]:
    """Key -> value that a flag without a value sets."""
    key = tuple(option.key.split("."))
    return {key: ("ps",) if option.kind == "served_ps" else int(not flag.startswith("--no-"))}


def as_key(word: str, value: object) -> str:
    """A hint for a flag's name that stands in a file but is no key, such as ``workers``.

    Args:
        word: The unknown key.
        value: What the file sets it to.

    Returns:
        What to write instead; empty when no flag has this name.
    """
    option = _by_flag(word)
    if option is None:
        return f"this is an option of the command line: --{word.replace('_', '-')}" if word in _OF_SUBMIT else ""
    if option.kind == "served_ps":
        return 'write serve = ["ps"]'
    table, _, name = option.key.rpartition(".")
    if option.kind == "switch":
        value = int(bool(value) != word.startswith("no"))
    return f"in [{table}] write {name} = {value if type(value) is int else '…'}" if table else f"write {name} = …"


def as_variable(variable: str) -> str:
    """A hint for a variable named after a flag that has none, such as --no-chief; empty when no flag has this name."""
    option = _by_flag(variable.removeprefix(PREFIX))
    if option is None:
        return ""
    same = next(other for other in OPTIONS if other.key == option.key)
    return f"write {same.variables[0]}={'ps' if option.kind == 'served_ps' else 0}"


def _by_flag(word: str) -> Option | None:
    flag = f"--{word.lower().replace('_', '-')}"
    return next((option for option in OPTIONS if flag in option.flags), None)


def _number(text: str, kind: type[int] | type[float]) -> object:
    try:
        return kind(text) if _NUMBER.fullmatch(text) else text
    except ValueError:
        return text


# Their values mostly begin with a dash, which argparse would take for another flag.
_DASHED = ("--native", "--setup")
# Options of sbatch and qsub that have no counterpart here.
_SCHEDULERS_OWN = (
    *("--array", "--begin", "--constraint", "--dependency", "--exclude", "--exclusive", "--gres", "--licenses"),
    *("--mail-type", "--mail-user", "--nodelist", "--qos", "--requeue", "--reservation", "-C", "-d", "-w", "-x"),
    *("-hold_jid", "-l", "-m", "-M"),
)
_OTHER_NAMES = {"--ntasks": "--workers", "-n": "--workers", "-P": "--project"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors that name the nearest valid option.

    Args:
        prog: The command, as in usage and errors.
        more: Keyword arguments of ArgumentParser.
    """

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(
            prog=prog,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=118),
            **more,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse a command line.

        Args:
            argv: The words after the command, without those after ``--``.

        Returns:
            The namespace; ``given`` has what add_job_options collects.

        Raises:
            UsageError: For an unknown option, a missing or superfluous argument or a bad value.
        """
        words = _glued(argv)
        try:
            arguments, rest = self.parse_known_args(words)
        except UsageError as error:
            if "required" in error.what:  # argparse reports what is missing first
                self._refuse_unknown(words)
            raise
        help_hint = f"see `{self.prog} --help`"
        self._refuse_unknown(rest[:1])
        if rest:
            hint = f"a command goes after --: {self.prog} [options] -- command" if "jobfile" in arguments else help_hint
            raise UsageError(f"unexpected argument {rest[0]!r}", hint=hint)
        return arguments

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = {name for action in self._actions for name in action.option_strings}
        flags = (word.partition("=")[0] for word in words if word.startswith("-"))
        flag = next((flag for flag in flags if flag not in known), None)
        if flag is not None:
            raise UsageError(f"unknown option {flag}", hint=self._near(flag) or f"see `{self.prog} --help`")

    def _near(self, flag: str) -> str:
        """A hint for an unknown option; empty when none is similar."""
        flags = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        if "--native" in flags and flag in _SCHEDULERS_OWN:
            return "--native passes an option to the scheduler: --native=--qos=long, --native='-l arch=lx-amd64'"
        likely = [name for name in flags if name.startswith(f"{flag}-") or name == _OTHER_NAMES.get(flag)]
        if likely:
            return f"did you mean {' or '.join(likely)}?"
        # without the dashes, which would make all flags alike
        hint = nearest(flag.lstrip("-"), [name[2:] for name in flags])
        return hint.replace("mean ", "mean --").replace(" or ", " or --")


class _Collect(argparse.Action):
    """Appends (option, flag, value) to ``namespace.given``."""

    def __init__(self, *, option: Option, **more: Any) -> None:
        super().__init__(**more)
        self.option = option

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        given = getattr(namespace, "given", None) or []
        namespace.given = [*given, (self.option, flag, values if self.nargs is None else None)]


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add JOBFILE and every option of the table.

    Args:
        parser: Its namespaces get ``jobfile`` (None without) and ``given``: (option, flag as typed, value) triples in
            the order of the command line, value None for a flag that takes none.
    """
    parser.add_argument("jobfile", metavar="JOBFILE", nargs="?", help="a gridtf.toml")
    parser.set_defaults(given=[])
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for option in OPTIONS:
        action = groups[option.group].add_argument(
            *option.flags,
            action=_Collect,
            option=option,
            dest=f"_{option.key}",
            default=argparse.SUPPRESS,
            nargs=None if option.metavar else 0,
            metavar=option.metavar or None,
            help=option.help,
        )
        if "|" in option.metavar:
            action.completer = functools.partial(_complete, option.metavar)  # type: ignore[attr-defined]


def _complete(words: str, **_: object) -> list[str]:
    return words.split("|")


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split a command line at ``--``.

    Returns:
        (words before it, words after it); the second is None without a ``--``.
    """
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _glued(argv: Sequence[str]) -> list[str]:
    glued: list[str] = []
    words = iter(argv)
    for word in words:
        value = next(words, None) if word in _DASHED else None
        glued.append(word if value is None else f"{word}={value}")
    return glued
