"""The command-line parser, made from the table of options."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from gridtf.errors import UsageError, nearest
from gridtf.jobspec.options import GROUPS, OPTIONS, Option, Table

# Their values usually begin with a dash, which argparse would take for another flag.
_DASHED = ("--args", "--native", "--setup")


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

    def parse(self, argv: Sequence[str], command: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line.

        Args:
            argv: The arguments of the command, without those after ``--``.
            command: Those after ``--``, for hints; None without a ``--``.

        Returns:
            The namespace, with the attributes that add_job_options describes.

        Raises:
            UsageError: For an unknown option, a missing or superfluous argument or a bad value.
        """
        takes_job = self._takes_job
        words = _glued(argv, conditions="--after" in self._metavars)
        if takes_job:
            self._refuse_misplaced(words, command)
        for word in words:
            if re.fullmatch("-[a-z][a-z-]+", word) and f"-{word}" in self._metavars:  # argparse reads -probe as -p robe
                raise UsageError(f"unknown option {word}", hint=f"did you mean -{word}?")
        try:
            several = any(action.nargs in ("*", "+") for action in self._get_positional_actions())
            arguments, rest = (self.parse_known_intermixed_args if several else self.parse_known_args)(words)
        except UsageError as error:
            if "required" in error.what:  # argparse reports missing arguments first
                self._refuse_unknown(words, words[:1])
            if re.search("required: JOB(, JOB)?$", error.what):
                names = " ".join(action.metavar for action in self._get_positional_actions() if action.metavar == "JOB")
                error.hint = f"write: {self.prog} {names}; `gridtf list` shows the jobs"
            raise
        self._refuse_unknown(words, rest[:1])
        if rest:
            from gridtf.jobspec import synonyms

            flag = f"--{rest[0]}"
            meant = f"write: {self.prog} {flag}" if self._metavars.get(flag) == "" else ""
            hint = synonyms.of_argument(self.prog) or meant or f"see `{self.prog} --help`"
            if takes_job:
                hint = f"a command goes after --: {self.prog} [options] -- command"
                if rest[0].isdecimal():
                    from gridtf.jobspec.jobfile import only_a_number

                    hint = only_a_number(rest[0])
            raise UsageError(f"unexpected argument {rest[0]!r}", hint=hint)
        return arguments

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            if action.nargs is not None or not action.option_strings:
                raise
            flag, metavar = action.option_strings[0], action.metavar or action.dest.upper()
            hint = f"write {flag} {metavar}; a value that begins with a dash is written {flag}=-…"
            raise UsageError(f"{flag} lacks its value", hint=hint) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:  # argparse's words differ between versions
            choices = list(map(str, action.choices))
            known = f"is not one of {', '.join(choices)}" if choices[1:] else f"is not known, only {choices[0]}"
            if "." in str(value) and not choices[1:]:  # a file, without what stands before it
                raise UsageError(f"{value!r} {known}", hint=f"write: {self.prog} {choices[0]} {shlex.quote(value)}")
            self.error(f"{value!r} {known}")

    @functools.cached_property
    def _takes_job(self) -> bool:
        """Whether a job file and a command may follow."""
        return any(action.dest == "jobfile" for action in self._actions)

    @functools.cached_property
    def _metavars(self) -> dict[str, str]:
        """Each flag -> the metavar of its value, empty without one."""
        return {
            name: str(action.metavar or action.dest.upper()) if action.nargs is None else ""
            for action in self._actions
            for name in action.option_strings
        }

    def _refuse_misplaced(self, words: Sequence[str], command: Sequence[str] | None) -> None:
        """Refuse a command without a ``--`` before it, and options of qsub that argparse would read as others."""
        options, others = self._split(words)
        if not others or (len(others) == 1 and others[0].endswith(".toml")):
            return
        from gridtf.jobspec import synonyms

        if (at := next((at for at, word in enumerate(words) if synonyms.is_of_qsub(word)), None)) is not None:
            self._refuse_option(words[at], synonyms.taken(words[at], words[at + 1 :]))
        if all(word.endswith(".toml") for word in others):
            hint = f"write the command once for each job: {self.prog} {shlex.quote(others[0])}"
            raise UsageError(f"unexpected argument {others[1]!r}", hint=hint)
        file = others[:1] if others[0].endswith(".toml") else []
        program = others[len(file) :]
        names = [word for word in program if not word.startswith("-")]
        if not program or names[:1] != program[:1] or all(name.isdecimal() for name in names):
            return  # an unknown option comes first
        known = synonyms.as_program(program)
        if known:
            from gridtf.jobspec.jobfile import refuse_requests

            refuse_requests(program[0])
        if command and known is None and len(names) + len(file) > 1:
            hint = "a value with spaces takes quotes, such as --setup 'module load cuda'"
            raise UsageError(f"unexpected argument {names[0]!r}", hint=hint)
        if known is not None or len(names) + len(file) > 1:
            what = f"unexpected argument {names[0]!r}" if file else f"{names[0]} is not a job file"
            line = shlex.join([*file, *options, "--", *(known or program), *(command or ())])
            raise UsageError(what, hint=f"write: {self.prog} {line}")

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The options that this command knows, with their values, and all other words."""
        known: list[str] = []
        others: list[str] = []
        rest = iter(words)
        for word in rest:
            flag, equals, _ = word.partition("=")
            # among the words of a command, a short option is the program's
            if flag not in self._metavars or (others and not flag.startswith("--")):
                others.append(word)
                continue
            known.append(word)
            if self._metavars[flag] and not equals:
                known += [value for value in [next(rest, None)] if value is not None]
        return known, others

    def _refuse_unknown(self, words: Sequence[str], left: Sequence[str]) -> None:
        """Refuse the first unknown option. left: the words that argparse did not understand."""
        flags = [(word, *word.partition("=")) for word in left if word.startswith("-")]
        word, flag, equals, value = next((row for row in flags if row[1] not in self._metavars), ("", "", "", ""))
        if not word:
            return
        if attached := re.fullmatch(r"(-[A-Za-z])(\d.*)", word):  # -n4
            flag, value = attached.groups()
            equals = "="
        from gridtf.jobspec import synonyms

        if not equals and word in words:
            value = synonyms.taken(flag, words[words.index(word) + 1 :])
        self._refuse_option(flag, value)

    def _refuse_option(self, flag: str, value: str) -> NoReturn:
        """Refuse an unknown option, and say what to write."""
        from gridtf.jobspec import synonyms

        hint = synonyms.of_command(self.prog, flag, value)
        if not hint and "--native" in self._metavars and (self._takes_job or flag.startswith("--")):
            hint = synonyms.option(flag, value or None, self.prog, self._metavars, answers=self._takes_job)
        flags = [name[2:] for name in self._metavars if name.startswith("--")]
        hint = hint or nearest(flag.lstrip("-").replace("_", "-"), flags, before="--")
        if not hint and self._takes_job:
            own = shlex.join([flag, value] if value else [flag])
            hint = f"options of your program go after it: {self.prog} -- python train.py {own}"
        raise UsageError(f"unknown option {flag}", hint=hint or f"see `{self.prog} --help`")


class _Collect(argparse.Action):
    """Appends (option, flag, value) to ``namespace.given``."""

    def __init__(self, *, option: Option, **more: Any) -> None:
        super().__init__(**more)
        self.option = option

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        given = getattr(namespace, "given", None) or []
        namespace.given = [*given, (self.option, flag, values if self.nargs is None else None)]


def add_job_options(parser: argparse.ArgumentParser, table: Table = OPTIONS, jobfile: str = "a gridtf.toml") -> None:
    """Add JOBFILE and every option of the table to a parser.

    Args:
        parser: Its namespaces get ``jobfile`` (None without one) and ``given``: (option, flag as typed, value) triples
            in the order of the command line, where the value is None for a flag without one.
        table: All options.
        jobfile: What may be given as JOBFILE; empty: no JOBFILE is added.
    """
    if jobfile:
        parser.add_argument("jobfile", metavar="JOBFILE", nargs="?", help=jobfile)
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


def _glued(argv: Sequence[str], *, conditions: bool) -> list[str]:
    """The words, with each value that begins with a dash at its option. conditions: the conditions of schedulers for
    the start of a job are translated as well."""
    glued: list[str] = []
    words = iter(argv)
    for word in words:
        if word.startswith("--mpi="):  # as srun has it
            word = word.replace("--mpi", "--mpi-type", 1)
        if conditions and (word == "-hold_jid" or word.partition("=")[0] == "--dependency"):
            from gridtf.jobspec.dependencies import of_slurm

            jobs = word.partition("=")[2] or next(words, "")
            found = {"after_any": jobs} if word == "-hold_jid" else of_slurm(jobs)
            glued += [f"--{key.replace('_', '-')}={names}" for key, names in found.items()]
            continue
        value = next(words, None) if word in _DASHED else None
        glued.append(word if value is None else f"{word}={value}")
    return glued
