"""Writes docs/reference.md, docs/man, docs/completions and docs/status.schema.json from gridtf itself: the table of
options, the docstrings of JobSpec, TaskSpec and the views of jobs, the parsers of the commands. The last
parts of docs/reference.md, on faults and on TensorFlow, are not made here: tables of faults are those of
scripts/faulttables.py.

    python scripts/reference.py      after a change of an option, a key, a command or a view

tests/checkout/test_reference.py compares what is there with what this makes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import statusschema

import gridtf
from gridtf.cli import COMMANDS, completion
from gridtf.cli.common import WITH_JOB_OPTIONS, find_command
from gridtf.cli.submit import LAYERS
from gridtf.jobspec.options import GROUPS, PREFIX, Option
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.schedulers import job_options
from gridtf.values import Value, fields

ROOT = Path(__file__).resolve().parents[1]
_EXIT_CODES = {
    "0": "success; of `wait`, `run`, `submit --wait` or `-f`: the job COMPLETED; of `doctor` and `init`: no failure",
    "1": "gridtf failed; of `wait`, `run`, `submit --wait` or `-f`: the job failed, or its first failed task's exit "
    "code; of `doctor` and `init`: at least one finding is a failure",
    "2": "wrong usage: a wrong command, option, key or value",
    "42": "the job is SAVED: its tasks have saved a checkpoint, to be continued",
    "124": "`wait --timeout`: the job still runs",
    "130": "Ctrl-C; the job goes on",
}
_FILES = {
    "./gridtf.toml": "the job file, if the command line does not say what to run",
    "~/.config/gridtf/config.toml": "your defaults, written by `gridtf init`; below XDG_CONFIG_HOME if that is set",
    "/etc/gridtf/config.toml": "the site's defaults; GRIDTF_SITE_CONFIG names another file, or none if it is empty",
    "~/.local/state/gridtf": "the index of your jobs; below XDG_STATE_HOME if that is set",
    "gridtf-runs": "run directories, in the working folder of a job",
    "$XDG_RUNTIME_DIR/gridtf": "answers of the scheduler, which your commands share for seconds; without that variable "
    "`gridtf-UID` in TMPDIR or /tmp",
}
_FAULTS = "## Faults\n"


class Key(Value):
    """A key of the job file: its dotted name, the options that set it, its meaning."""

    name: str
    options: tuple[str, ...]
    meaning: str


class Flag(Value):
    """An option or argument of a command: as it is typed, and its help."""

    spelling: str
    help: str


def job_keys() -> Iterator[Key]:
    """All keys of a job file, in the order of JobSpec, then those of schedulers' own options."""
    table = job_options()
    known = fields(JobSpec)
    for name in known:
        if name == "tasks":
            for own in fields(TaskSpec):
                spelled = tuple(
                    _spelling(option) for option in table if re.fullmatch(rf"tasks\.\w+\.{own}", option.key)
                )
                yield Key(f"tasks.TYPE.{own}", spelled, _meaning(own, TaskSpec))
        elif name != "options":
            spelled = tuple(_spelling(option) for option in table if option.key == name)
            yield Key(name, ("after --",) if name == "command" else spelled, _meaning(name, JobSpec))
    for option in table:
        if option.key.partition(".")[0] not in known:
            yield Key(option.key, (_spelling(option),), option.help)


def _meaning(name: str, cls: type[Value]) -> str:
    """The text of a field's docstring, with its default. In a file and on the command line, None is no value."""
    text = re.sub(r"\bNone: ", "Default: ", attributes(cls)[name])
    default = fields(cls)[name]
    return text if default in (None, (), {}) else f"{text} Default: {default}."


def attributes(cls: type) -> dict[str, str]:
    """The texts of the Attributes section of a class's docstring."""
    section = re.search(r"\n *Attributes:\n(.*?)(?:\n\n|\Z)", inspect.getdoc(cls) or "", re.DOTALL)
    assert section, cls
    entries = re.split(r"^ {4}(\w+): ", section[1], flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def flags(command: str) -> Iterator[Flag]:
    """The options and arguments of a command, without those of every job."""
    of_jobs = {flag for option in job_options() for flag in option.flags} | {"-h", "JOBFILE"}
    for action in find_command(command).parser()._actions:
        words = action.option_strings or [str(action.metavar)]
        if of_jobs.isdisjoint(words) or (command not in WITH_JOB_OPTIONS and "-h" not in words):
            value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
            yield Flag(", ".join(f"{word}{value}" for word in words), action.help or "")


def _spelling(option: Option) -> str:
    """``--partition NAME, --queue NAME``"""
    return ", ".join(f"{flag} {option.metavar}".rstrip() for flag in option.flags)


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """The command lines of a parser's examples."""
    return [line.strip() for line in (parser.epilog or "").splitlines() if line.startswith("  ")]


# --- docs/reference.md ---------------------------------------------------------------------------------------------


def page(text: str) -> str:
    """The page with all that is made here as it is now; its part on faults stays."""
    return f"{markdown()}\n{_FAULTS}{text.partition(_FAULTS)[2]}"


def markdown() -> str:
    """What is made of the page."""
    lines = [
        "# Reference",
        "",
        "<!-- Made by scripts/reference.py, down to Faults: change options, docstrings or commands, not this file. -->",
        "",
        f"Keys of a job file, their options, and the commands of gridtf {gridtf.__version__}: the manual pages say the",
        "same (`man gridtf`, `man gridtf-submit`, `man gridtf.toml`). At the end, what happens when something fails.",
        "",
        "- [Keys and options of a job](#keys-and-options-of-a-job)",
        "- [Commands](#commands)",
        "- [Exit codes](#exit-codes)",
        "- [Files](#files)",
        "- [Tested on](#tested-on)",
        "- [Faults](#faults)",
        "- [TensorFlow: its words, the versions that were run, what it costs](#tensorflow)",
        "",
        "## Keys and options of a job",
        "",
        f"`--gpus-per-node 4` is `gpus_per_node = 4` in a file and `{PREFIX}GPUS_PER_NODE=4` in the environment.",
        "Keys without an option are set in a file.",
        "",
        "| key | option | meaning |",
        "| --- | --- | --- |",
        *(f"| `{key.name}` | {_codes(key.options)} | {_cell(key.meaning)} |" for key in job_keys()),
        "",
        "## Commands",
        "",
        *_commands(),
        "## Exit codes",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {_cell(text)} |" for code, text in _EXIT_CODES.items()),
        "",
        "## Files",
        "",
        "| file | what it is |",
        "| --- | --- |",
        *(f"| `{file}` | {text} |" for file, text in _FILES.items()),
        "",
        *_tested(),
    ]
    return "\n".join(lines) + "\n"


def _tested() -> Iterator[str]:
    """The results that runs of the conformance suite have written."""
    yield from (
        "## Tested on",
        "",
        "The conformance suite (`gridtf.testing`) has submitted, watched and cancelled jobs on",
        "these; a row is written by the run itself (`scripts/test --record`), never by hand.",
        "The file that a [pilot](site.md#a-pilot), `gridtf doctor --conformance`, writes at your site becomes",
        "a row as it is: send it with an issue. A maintainer puts it into `tests/recorded/tested`, and runs",
        "`python scripts/reference.py`.",
        "",
    )
    release = ROOT / "tests/recorded/release"
    if release.exists():
        commit, date = release.read_text(encoding="utf-8").split()
        yield from (f"All tests (`scripts/test --release`) were last green on commit {commit}, {date}.", "")
    about = ("scheduler", "version", "system", "python", "tensorflow", "gpus", "gridtf", "commit", "date")
    columns = (*about, "passed", "failed")
    yield from (f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}")
    for file in sorted((ROOT / "tests/recorded/tested").glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        values = [found.get(name, "") for name in columns]  # a file of a site has no commit
        cells = [str(len(value)) if isinstance(value, list) else _cell(value) for value in values]
        yield f"| {' | '.join(cells)} |"


def _commands() -> Iterator[str]:
    for name, summary in COMMANDS.items():
        parser = find_command(name).parser()
        yield from (f"### gridtf {name}", "", f"{summary[0].upper()}{summary[1:]}.", "")
        yield from ("```", str(parser.usage), *examples(parser), "```", "")
        rows = list(flags(name))
        if rows:
            yield from ("| option | meaning |", "| --- | --- |")
            yield from (f"| `{_cell(row.spelling)}` | {_cell(row.help)} |" for row in rows)
            yield ""


def _codes(words: Iterable[str]) -> str:
    return ", ".join(word if word == "after --" else f"`{_cell(word)}`" for word in words)


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


# --- manual pages: man(7) ------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Path below docs/man -> manual page."""
    made = {"man1/gridtf.1": _overview(), "man5/gridtf.toml.5": _job_file()}
    return made | {f"man1/gridtf-{name}.1": _command_page(name) for name in COMMANDS}


def _overview() -> str:
    commands = [Flag(f"gridtf {name}", summary) for name, summary in COMMANDS.items()]
    return _page(
        "gridtf",
        1,
        "run distributed TensorFlow on Slurm, Grid Engine or one machine",
        ("SYNOPSIS", ["gridtf COMMAND [options]"]),
        ("COMMANDS", commands),
        ("EXIT STATUS", [Flag(code, text) for code, text in _EXIT_CODES.items()]),
        ("FILES", [Flag(file, text) for file, text in _FILES.items()]),
        ("SEE ALSO", [", ".join(f"gridtf-{name}(1)" for name in COMMANDS) + ", gridtf.toml(5)"]),
    )


def _command_page(name: str) -> str:
    parser = find_command(name).parser()
    sections: list[tuple[str, list[str | Flag]]] = [("SYNOPSIS", [str(parser.usage)])]
    if own := list(flags(name)):
        sections.append(("OPTIONS", [*own]))
    if name in WITH_JOB_OPTIONS:
        for group in GROUPS:
            rows = [Flag(_spelling(option), option.help) for option in job_options() if option.group == group]
            sections.append((group.upper(), [*rows]))
        sections.append(("FILES AND VARIABLES", [" ".join(LAYERS.split())]))
    if lines := examples(parser):
        sections.append(("EXAMPLES", [_verbatim(lines)]))
    sections.append(("SEE ALSO", ["gridtf(1), gridtf.toml(5)"]))
    return _page(f"gridtf-{name}", 1, COMMANDS[name], *sections)


def _job_file() -> str:
    rows: list[str | Flag] = [
        Flag(key.name, key.meaning + (f" Option: {'; '.join(key.options)}." if key.options else ""))
        for key in job_keys()
    ]
    example = ['command = ["python", "train.py"]', "nodes = 2", "gpus_per_node = 4", "", "[tasks.ps]", "count = 2"]
    return _page(
        "gridtf.toml",
        5,
        "a job of gridtf",
        ("DESCRIPTION", ["A job file in TOML. The site's and the user's file have the same keys."]),
        ("KEYS", rows),
        ("EXAMPLES", [_verbatim(example)]),
        ("SEE ALSO", ["gridtf(1), gridtf-submit(1)"]),
    )


def _page(name: str, section: int, summary: str, *sections: tuple[str, Iterable[str | Flag]]) -> str:
    lines = [
        '.\\" Made by scripts/reference.py.',
        f'.TH {_roff(name.upper())} {section} "" "gridtf {gridtf.__version__}" "gridtf"',
        ".SH NAME",
        f"{_roff(name)} \\- {_roff(summary)}",
    ]
    for title, entries in sections:
        lines.append(f".SH {_roff(title)}")
        for entry in entries:
            if isinstance(entry, Flag):
                lines += [".TP", f"\\fB{_roff(entry.spelling)}\\fR", _roff(entry.help)]
            else:
                lines.append(entry if entry.startswith(".nf") else _roff(entry))
    return "\n".join(lines) + "\n"


def _verbatim(lines: Iterable[str]) -> str:
    return "\n".join([".nf", *map(_roff, lines), ".fi"])


def _roff(text: str) -> str:
    """Text for roff: on a line of its own it is no request, and its dashes can be copied."""
    text = text.replace("`", "").replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def completions() -> dict[str, str]:
    """Shell -> the code that its tab completion loads, so that no start of a shell runs gridtf."""
    return {shell: completion.code(shell) for shell in completion.SHELLS}


def main() -> None:
    """Write all of it."""
    reference = ROOT / "docs/reference.md"
    reference.write_text(page(reference.read_text(encoding="utf-8")), encoding="utf-8")
    (ROOT / "docs/status.schema.json").write_text(statusschema.text(attributes), encoding="utf-8")
    for folder, made in (("docs/man", pages()), ("docs/completions", completions())):
        shutil.rmtree(ROOT / folder, ignore_errors=True)
        for name, text in made.items():
            (ROOT / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
