"""What to write in place of words that users bring from elsewhere (words.toml). Loaded only after a mistake."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gridtf.jobspec.jobfile import toml_parser
from gridtf.jobspec.options import Table, as_key
from gridtf.jobspec.spec import LISTS, container_path
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import format_walltime
from gridtf.text import toml


@cache
def rows(name: str) -> Any:
    """A table of words.toml."""
    text = Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    return toml_parser().loads(text)[name]


def is_of_qsub(word: str) -> bool:
    """Whether it is one of qsub's options whose single dash argparse would read otherwise: -pe as -p e."""
    return word in rows("native")["qsub_dashed"].split()


def command(word: str, rest: Sequence[str]) -> str:
    """What to write in place of a word that is no command.

    Args:
        word: The word.
        rest: The words after it.

    Returns:
        A hint; empty for a word that nobody would use for a command.
    """
    line = shlex.join(rest)
    if word.startswith("-"):
        return f"a command comes first: gridtf submit {shlex.join([word, *rest])}"
    if word.endswith(".toml"):
        return f"write: gridtf submit {shlex.join([word, *rest])}"
    job = next((part for part in rest if not part.startswith("-") and not part.isdecimal()), None)
    job = shlex.quote(job or next((part for part in rest if part.isdecimal()), "JOB"))
    if "--" not in rest and (told := _found(word.lower(), rows("no_commands"))):
        return str(told.format(job))
    name = _targets(word.lower(), rows("commands"))
    if not name:
        program = as_program([word, *rest])
        return f"write: gridtf submit -- {shlex.join(program)}" if program else ""
    after = {"JOB": job, "rest": line or "JOBFILE"}.get(rows("follows").get(name), "")
    more = {"submit": " (or gridtf run, right here)"}.get(name, "")
    if word in ("check", "config", "settings"):
        more = "; gridtf doctor examines the site, gridtf init writes its settings"
    return f"write: gridtf {name} {after}".rstrip() + more


def qsub(word: str, after: Sequence[str]) -> str:
    """What to write in place of one of qsub's options with a single dash. after: the words that follow it."""
    values = [part for part in after[:2] if not part.startswith("-")]
    if told := _found(word.lstrip("-"), rows("answers")):
        return str(told)
    if word == "-pe":
        return f"write --pe {(values or ['NAME'])[0]} --slots {values[1] if values[1:] else 'N'}"
    if word == "-cwd":
        return "leave it out: the job runs in the current folder, or in that of --chdir DIR"
    if word == "-wd":
        return f"write --chdir {shlex.quote((values or ['DIR'])[0])}"
    taken = [word] if word in ("-notify", "-hard") else [word, *values[:1]]
    return f"write {_as_option('native', ' '.join(taken))}"


def of_command(prog: str, flag: str, value: str) -> str:
    """What to write in place of an unknown option of a command without job options, such as ``gridtf logs``."""
    name = prog.rpartition(" ")[2]
    row = next((row for row in rows("of_commands") if name in row[0].split() and _word(flag) in row[1].split()), None)
    other = {"init": "FILE", **dict.fromkeys(rows("with_job")["commands"].split(), "JOB"), "logs": "N"}.get(name, "N")
    return row[2].format(value or other) if row else ""


def of_argument(prog: str, word: str) -> str:
    """What to write in place of a second argument of a command that takes one job; empty for other commands."""
    name = prog.rpartition(" ")[2]
    if name == "logs" and re.fullmatch(r"([a-z_]+:)?\d+", word):
        return f"write --task {word if ':' in word else f'worker:{word}'}"
    one = name in rows("with_job")["commands"].split() and name not in ("address", "report")
    return f"{prog} takes one job; write the command once for each" if one else ""


def as_program(words: Sequence[str]) -> list[str] | None:
    """The command that words without a ``--`` before them stand for; None where they are no command.

    Args:
        words: Such as ``["train.py", "--epochs", "3"]``, which lacks ``python``.
    """
    name = words[0].rsplit("/", 1)[-1] if words else ""
    if name.endswith(".py"):
        return ["python", *words]
    if name.endswith(".sh"):
        return ["bash", *words]
    known = re.fullmatch(r"i?python[\d.]*|bash|sh|mpirun|mpiexec|srun|env|apptainer|singularity|conda|uv", name)
    return list(words) if known and len(words) > 1 else None


def option(flag: str, value: str | None, prog: str, flags: Mapping[str, str]) -> str:
    """What to write in place of an unknown option of a job.

    Args:
        flag: The option as typed, such as ``--gres``.
        value: Its value, if it has one.
        prog: The command, such as ``gridtf submit``.
        flags: All flags of the command -> the metavar of their value, empty without one.

    Returns:
        A hint; empty for an option that nobody knows.
    """
    word = _word(flag)
    alone = is_switch(flag) or word in rows("native")["qsub"].split()
    if pairs := _pairs(word, value or (True if alone else "…"), flag):
        return "write " + " ".join(_as_option(*pair) for pair in pairs)
    targets = _targets(word, rows("options"))
    if targets == "nodes" and value and not re.match("[0-9]", value):  # names of hosts
        return f"write {_as_option('native', f'--nodelist={value}')} (Slurm), or --native='-l hostname=…' (Grid Engine)"
    if targets == "entry" and value and as_program([value]):
        targets, word = "", "program"
    if targets:
        known = [name for target in targets.split() if (name := f"--{target.replace('_', '-')}") in flags]
        lines = [f"{name} {shlex.quote(value) if value else flags[name]}" if flags[name] else name for name in known]
        each = [rows("each").get(name, "") for name in known] if lines[1:] else [""]
        return f"write {' or '.join(line + more for line, more in zip(lines, each, strict=True))}" if lines else ""
    if word in rows("special")["job_file"].split():
        return f"the job file is an argument without an option: {prog} {shlex.quote(value or 'gridtf.toml')}"
    if word in rows("special")["command"].split():
        return f"the command goes after --: {prog} -- {shlex.join(as_list('command', value or 'python train.py'))}"
    if word == "arguments":
        return f"write --args={shlex.quote(value or '…')}"
    if word in rows("special")["container"].split():
        return f"write --container {shlex.quote(_image(value)) if value else 'IMAGE'}"
    if word in rows("special")["variables"].split():
        names = [name for name in (value or "").split(",") if name not in ("", "ALL", "NONE")]
        return f"write {' '.join(f'--env {shlex.quote(name)}' for name in names) or '--env NAME for each variable'}"
    return _found(word, rows("answers")) or ""


def is_switch(flag: str) -> bool:
    """Whether an option of sbatch takes no value of its own: the next word is something else."""
    word = _word(flag)
    return rows("letters").get(word, word) in rows("native")["sbatch_switches"].split()


def key(word: str, value: object, table: Table) -> str:
    """What to write in place of an unknown key of a job file.

    Args:
        word: The key as written, at the top of the file.
        value: Its value.
        table: All options.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    name = _word(word)
    if (known := as_key(name, value, table)) != "":
        return known
    if isinstance(value, Mapping):
        return task_type(name) or ("write [env]" if _targets(name, rows("options")) == "env" else "")
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    if pairs := _pairs(name, text, name):
        merged: dict[str, object] = {}
        for target, item in pairs:
            merged[target] = [*merged.get(target, []), item] if target in LISTS else item  # type: ignore[misc]
        return f"write {' and '.join(f'{target} = {toml(item)}' for target, item in merged.items())}"
    if name in rows("special")["command"].split():
        return f"write command = {toml(as_list('command', value))}"
    if name == "arguments":
        return f"write args = {toml(as_list('args', value))}"
    if name in rows("special")["container"].split():
        return f"write container = {toml(_image(str(value)))}"
    hints = [as_key(target, value, table) for target in _targets(name, rows("options")).split()]
    if hints:
        return " or ".join([hints[0], *(hint.removeprefix("write ") for hint in hints[1:])])
    return _found(name, rows("answers")) or ""


def task_key(word: str, value: object, job_keys: Collection[str]) -> str:
    """What to write in place of an unknown key of ``[tasks.TYPE]``.

    Args:
        word: The key as written.
        value: Its value.
        job_keys: The keys of the job itself.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    if target := _targets(_word(word), rows("task_keys")):
        return f"write {target} = {toml(as_list('command', value) if target == 'command' else value)}"
    if word in job_keys:
        return f"it is a key of the job: write {word} = {toml(value)} above the first [table]"
    return ""


def task_type(word: str) -> str:
    """What to write in place of an unknown task type; empty for a word that nobody uses for one."""
    target = _targets(_word(word), rows("task_types"))
    return f"write [tasks.{target}]" if target in TASK_TYPES else ""


def variable(word: str) -> list[str]:
    """The names of the options that a word after GRIDTF_SUBMIT_ stands for."""
    return [name.upper() for name in _targets(_word(word), rows("options")).split()]


def _image(text: str) -> str:
    """An image as Apptainer names it: docker://HOST/NAME:TAG for the names of Docker and of pyxis (HOST#NAME:TAG)."""
    return text if "://" in text or container_path(text) else f"docker://{text.replace('#', '/')}"


def as_list(name: str, value: object) -> list[str]:
    """The list that a string in its place stands for: words of a command or of types, lines of anything else."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value)
    if name == "container_command":
        return shlex.split(text) if _splits(text) else [text]
    if name == "args":
        return shlex.split(text) if _splits(text) else [text]
    if name == "command":
        words = shlex.split(text) if _splits(text) else [text]
        return as_program(words) or words
    if name == "serve":
        return [word for word in re.split(r"[\s,]+", text) if word]
    return [line for line in text.splitlines() if line.strip()] or [text]


def _word(text: str) -> str:
    word = text.lstrip("-").replace("-", "_")
    return word if len(word) == 1 else word.lower()


def _targets(word: str, table: Mapping[str, str]) -> str:
    return next((targets for targets, words in table.items() if word in words.split()), "")


def _found(word: str, table: Mapping[str, Any]) -> Any:
    return next((row for words, row in table.items() if word in words.split()), None)


def _splits(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:  # an open quote
        return False


def _pairs(word: str, value: object, flag: str) -> list[tuple[str, object]]:
    """The (key, value) pairs of options that a scheduler's own option, or an item of a list, stands for.

    Args:
        word: The option or key.
        value: Its value; True without one.
        flag: The option as typed.
    """
    if value in (None, False):
        return []
    if word == "gres":
        gpus = re.fullmatch(r"(?:gres[:/])?gpu(?::(\d+))?", str(value))
        return [("gpus_per_node", int(gpus[1] or 1)) if gpus else ("native", f"--gres={value}")]
    if word == "pe":
        name, _, slots = str(value).partition(" ")
        return [("pe", name), ("slots", int(slots) if slots.isdecimal() else slots or "N")]
    if word in ("l", "h_rt"):
        return [_resource(part) for part in (f"h_rt={value}" if word == "h_rt" else str(value)).split(",")]
    if word in rows("native")["qsub"].split() and not flag.startswith("--"):
        return [("native", f"-{word}" if value is True else f"-{word} {value}")]
    long = rows("letters").get(word, word)
    if long in rows("native")["sbatch"].split() or long in rows("native")["sbatch_switches"].split():
        name = f"--{long.replace('_', '-')}"
        return [("native", name if value is True else f"{name}={value}")]
    key, item = _found(word, rows("items")) or ("", "")
    return [(key, line) for line in item.format(value).splitlines()]


def _resource(part: str) -> tuple[str, object]:
    """One of the resources that qsub -l requests, such as ``h_rt=3600``."""
    name, _, value = part.partition("=")
    if name == "h_rt" and value:  # in seconds, where gridtf's plain numbers are minutes
        return "time", format_walltime(int(value)) if value.isdecimal() else value
    if name == "gpu" and value.isdecimal():
        return "gpus_per_task", int(value)
    return "native", f"-l {part}"


def _as_option(key: str, value: object) -> str:
    text = shlex.quote(str(value))
    return f"--native={text}" if key == "native" else f"--{key.replace('_', '-')} {text}"
