"""The command-line parser, made from the table of options."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

from gridtf.errors import UsageError, nearest
from gridtf.jobspec.options import GROUPS, OPTIONS, Option, Table

# Their values usually begin with a dash, which argparse would take for another flag.
_DASHED = ("--native", "--setup")
# Options of sbatch and qsub without a counterpart in gridtf.
_SCHEDULERS_OWN = (
    *("--array", "--begin", "--constraint", "--dependency", "--exclusive", "--gres", "--licenses"),
    *("--mail-type", "--mail-user", "--nodelist", "--qos", "--requeue", "--reservation", "-C", "-d", "-w"),
    *("-hold_jid", "-l", "-m", "-M"),
)
_OTHER_NAMES = {"--ntasks": "--workers", "-n": "--workers", "-P": "--project"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors that name the nearest valid option.

    Args:
        prog: The command, for usage and errors.
        more: Further keyword arguments of ArgumentParser.
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
            argv: The arguments of the command, without those after ``--``.

        Returns:
            The namespace, with the attributes that add_job_options describes.

        Raises:
            UsageError: For an unknown option, a missing or superfluous argument or a bad value.
        """
        words = _glued(argv)
        try:
            arguments, rest = self.parse_known_args(words)
        except UsageError as error:
            if "required" in error.what:  # argparse reports missing arguments first
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


def add_job_options(parser: argparse.ArgumentParser, table: Table = OPTIONS) -> None:
    """Add JOBFILE and every option of the table to a parser.

    Args:
        parser: Its namespaces get ``jobfile`` (None without one) and ``given``: (option, flag as typed, value) triples
            in the order of the command line, where the value is None for a flag without one.
        table: All options.
    """
    parser.add_argument("jobfile", metavar="JOBFILE", nargs="?", help="a gridtf.toml")
    parser.set_defaults(given=[])
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for option in table:
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
    """Split a command line at its first ``--``.

    Returns:
        (arguments before it, arguments after it); the second is None without a ``--``.
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
