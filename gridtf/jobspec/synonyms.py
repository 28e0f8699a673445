"""What to write in place of words that users bring from elsewhere (words.toml). Loaded only after a mistake.

``meant`` looks a word up: it stands for settings of the job, or for none and has an answer of its own. What is written
for these settings depends on where the word was: option, key, keyword and variable say it there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gridtf.jobspec.dependencies import of_slurm
from gridtf.jobspec.jobfile import toml_parser
from gridtf.jobspec.options import KINDS, OPTIONS, PREFIX, Option, Table
from gridtf.jobspec.spec import LISTS, JobSpec, container_path
from gridtf.jobspec.tasktypes import TASK_TYPES
from gridtf.jobspec.units import format_walltime
from gridtf.text import toml
from gridtf.values import Value, fields

Setting = tuple[str, Any, str]  # name of a flag or a key, its value (None: not known), a remark on it
_GRES = r"(?:gres[:/])?gpu(?::([\w.+-]+:\d+|\d+))?"
_OF_SUBMIT = ("wait", "follow", "quiet", "dry_run", "json")  # options of the command, not of the job


class Meant(Value):
    """What a word stands for.

    Attributes:
        settings: The settings, as (flag or key, value, remark); the value is None where it is not known.
        choice: Whether any one of them will do, instead of all.
        answer: What to do where no setting is meant; empty where nobody knows the word.
    """

    settings: tuple[Setting, ...] = ()
    choice: bool = False
    answer: str = ""


@cache
def rows(name: str) -> Any:
    """A table of words.toml."""
    text = Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    return toml_parser().loads(text)[name]


def found(word: str, table: Mapping[str, Any]) -> Any:
    """The row of a word, in a table whose keys are words with spaces between them; None without one."""
    return next((row for words, row in table.items() if word in words.split()), None)


def _target(word: str, table: Mapping[str, str]) -> str:
    """What a word stands for, in a table whose values are words with spaces between them; empty if for nothing."""
    return next((target for target, words in table.items() if word in words.split()), "")


def _word(text: str) -> str:
    word = text.lstrip("-").replace("-", "_")
    return word if len(word) == 1 else word.lower()


def meant(word: str, value: object, known: Collection[str] = ()) -> Meant:
    """Look up a word in place of an option or a key.

    Args:
        word: As written, such as ``--gres``.
        value: Its value; None where it has none.
        known: The flags that exist, written as keys.
    """
    name = _word(word)
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    if settings := _of_scheduler(word, text):
        return Meant(settings)
    name = long if (long := rows("letters").get(name, name)) in known else name
    if name in known:
        return Meant(((name, value, ""),))
    if settings := _item(name, text):
        return Meant(settings)
    targets = _target(name, rows("options")).split()
    if targets == ["nodes"] and isinstance(value, str) and re.match("[A-Za-z_]", value):
        return Meant((("nodelist", re.sub(r":\d+", "", value), ""),))  # without the slots of mpirun
    if targets == ["entry"] and isinstance(value, str) and as_program([value]):
        targets = ["command"]
    each = rows("each") if targets[1:] else {}
    if not targets and re.match("(slurm|sbatch|sge|qsub)_", name):
        return meant(name.partition("_")[2], value, known)  # submitit's slurm_partition
    made = ((target, one, each.get(target, more)) for target in targets for one, more in _values(target, value))
    return Meant(tuple(made), choice=bool(targets[1:]), answer=found(name, rows("answers")) or "")


def _values(target: str, value: Any) -> list[tuple[Any, str]]:
    """The values of a setting, with a remark on each."""
    if target == "env" and (value is None or isinstance(value, str)):
        variables = [one for one in (value or "").split(",") if one not in ("", "ALL", "NONE")]
        return [(one, "") for one in variables] or [("NAME", " for each variable")]
    if target == "container" and value is not None:  # as Apptainer names it; pyxis writes HOST#NAME:TAG
        text = str(value)
        return [(text if "://" in text or container_path(text) else f"docker://{text.replace('#', '/')}", "")]
    return [(value, "")]


def _of_scheduler(flag: str, value: Any) -> tuple[Setting, ...]:
    """The settings that an option of sbatch or qsub stands for. flag: as typed."""
    word, native = _word(flag), rows("native")
    long = rows("letters").get(word, word)
    if value is False:
        return ()
    if word == "gres" and value:
        parts = {part: re.fullmatch(_GRES, part) for part in str(value).split(",")}
        gpus = [match[1] or "1" for match in parts.values() if match]
        setting = [("gpus_per_node", gpus[0], "")] if len(gpus) == 1 else []
        others = ",".join(part for part, match in parts.items() if not (match and setting))
        return (*setting, *([("native", f"--gres={others}", "")] if others else []))
    if word == "pe":
        name, _, slots = str(value or "").partition(" ")
        return ("pe", name or None, ""), ("slots", slots or None, "")
    if word in ("dependency", "d", "hold_jid") and isinstance(value, str) and value:
        found = {"after_any": value} if word == "hold_jid" else of_slurm(value)
        return tuple((key, jobs, "") for key, jobs in found.items())
    if word == "l" and isinstance(value, str):
        return tuple(_resource(part) for part in value.split(","))
    if word == "h_rt":
        return (_resource(f"h_rt={value}"),)
    if word in native["qsub"].split() and not flag.startswith("--"):
        return (("native", f"-{word}" if value in (True, None) else f"-{word} {value}", ""),)
    if long in native["sbatch"].split() or (long in native["sbatch_switches"].split() and not isinstance(value, str)):
        name = f"--{long.replace('_', '-')}"
        if value is None and long in native["sbatch"].split():
            value = "…"
        return (("native", name if value in (True, None) else f"{name}={value}", ""),)
    return ()


def _resource(part: str) -> Setting:
    """One of the resources that qsub -l requests, such as ``h_rt=3600``."""
    name, _, value = part.partition("=")
    if name == "h_rt" and value:  # in seconds, where gridtf's plain numbers are minutes
        return "time", format_walltime(int(value)) if value.isdecimal() else value, ""
    if name == "gpu" and value.isdecimal():
        return "gpus_per_task", int(value), ""
    return "native", f"-l {part}", ""


def _item(word: str, value: object) -> tuple[Setting, ...]:
    key, item = found(word, rows("items")) or ("", "")
    if item == "mail" and value in ("NONE", "n"):  # sbatch's and qsub's words for no mail
        return ()
    lines = item.format("…" if value in (None, True) else value).splitlines()
    return tuple((key, line, "") for line in lines) if value is not False else ()


def _write(meaning: Meant, say: Callable[[Setting], str], both: str, answer: str = "") -> str:
    """What to write for the settings of a word, or the answer. say: writes a setting; empty where it does not exist."""
    lines = [line + setting[2] for setting in meaning.settings if (line := say(setting))]
    return f"write {(' or ' if meaning.choice else both).join(lines)}" if lines else answer


# --- options


def option(flag: str, value: str | None, prog: str, flags: Mapping[str, str], *, answers: bool = True) -> str:
    """What to write in place of an unknown option of a job.

    Args:
        flag: The option as typed, such as ``--gres``.
        value: Its value, if it has one.
        prog: The command, such as ``gridtf submit``.
        flags: All flags of the command -> the metavar of their value, empty without one.
        answers: Whether a job is given, so that more helps than another option of the command.

    Returns:
        A hint; empty for an option that nobody knows.
    """

    def say(setting: Setting) -> str:
        name, value, _ = setting
        name = f"--{name.replace('_', '-')}"
        if not flags.get(name):
            return name if name in flags else ""
        if name in ("--native", "--args"):  # their values usually begin with a dash
            return f"{name}={shlex.quote(str(value or '…'))}"
        return f"{name} {flags[name] if value is None else shlex.quote(str(value))}"

    if answers and (answer := rows("typed").get(flag) or found(_word(flag), rows("typed"))):
        return str(answer).format(prog=prog, value=shlex.quote(value or "gridtf.toml"))
    meaning = meant(flag, value, {name[2:].replace("-", "_") for name in flags if name.startswith("--")})
    if answers and meaning.settings and meaning.settings[0][0] == "command":
        return f"the command goes after --: {prog} -- {shlex.join(as_list('command', value or 'python train.py'))}"
    return _write(meaning, say, " ", meaning.answer if answers else "")


def is_of_qsub(word: str) -> bool:
    """Whether it is one of qsub's options whose single dash argparse would read otherwise: -pe as -p e."""
    return word in rows("native")["qsub_values"]


def taken(flag: str, after: Sequence[str]) -> str:
    """The value of an unknown option among the words after it; empty for an option without one."""
    if re.match(r"[A-Za-z][\w.-]*:\d", "".join(after[:1])):  # mpirun's -H n1:4, which is --hold in Slurm
        return after[0]
    most = rows("native")["qsub_values"].get(flag, 0 if is_switch(flag) else 1)
    values: list[str] = []
    for word in after[:most]:
        if word.startswith("-"):
            break
        values.append(word)
    return " ".join(values)


def is_switch(flag: str) -> bool:
    """Whether an option of sbatch takes no value of its own: the next word is something else."""
    word = _word(flag)
    return rows("letters").get(word, word) in rows("native")["sbatch_switches"].split()


# --- keys of files, keywords of JobSpec and variables


def _names(table: Table) -> dict[str, Option]:
    """The options by their keys and by their long flags, written as keys."""
    flags = {flag[2:].replace("-", "_"): option for option in table for flag in option.flags if flag[1] == "-"}
    return {option.key: option for option in table} | flags


def _known(setting: Setting, names: Mapping[str, Option]) -> tuple[str, str, Any]:
    """(table of a setting, its key there, its value as in a file, None where it has to be another)."""
    name, value, _ = setting
    option = names.get(name)
    key = option.key if option else name
    table, _, last = key.rpartition(".")
    if key == "env" and not isinstance(value, Mapping):
        variable, _, text = str(value or "NAME").partition("=")
        value = {variable: text or "…"}
    elif (key in LISTS or key in ("args", "command")) and value is not None:
        value = as_list(key, value)
    elif option and isinstance(value, str):
        value = option.kind.read(value)
    if option and option.kind.of_flag:
        value = option.kind.of_flag(bool(value) != name.startswith("no_"))
    return table, last, None if option and option.kind is KINDS["whole"] and type(value) is not int else value


def _merged(meaning: Meant) -> Meant:
    """The same settings, with one for several items of a list."""
    lists: dict[str, list[str]] = {}
    for name, value, _ in meaning.settings:
        if name in LISTS and not meaning.choice:
            lists.setdefault(name, []).extend(as_list(name, value))
    once = {name: (name, lists.get(name, value), remark) for name, value, remark in meaning.settings}
    return meaning if meaning.choice else meaning.replace(settings=tuple(once.values()))


def key(word: str, value: object, table: Table) -> str:
    """What to write in place of an unknown key of a job file.

    Args:
        word: The key as written, at the top of the file.
        value: Its value.
        table: All options.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    names = _names(table)
    if isinstance(value, Mapping):
        known = names.get(_word(word))
        if known and known.kind is not KINDS["served_ps"]:
            return f"write [{known.key.rpartition('.')[0] or known.key}]"
        return task_type(word) or ("write [env]" if _target(_word(word), rows("options")) == "env" else "")
    meaning = _merged(meant(word, value, {*names, *_OF_SUBMIT}))
    if of_submit := next((name for name, _, _ in meaning.settings if name in _OF_SUBMIT), ""):
        return f"it can only be set on the command line: --{of_submit.replace('_', '-')}"
    section = next((part[0] for part in (_known(setting, names) for setting in meaning.settings)), "")

    def say(setting: Setting) -> str:
        _, last, value = _known(setting, names)
        return f"{last} = {'…' if value is None else toml(value)}"

    return (f"in [{section}] " if section else "") + _write(meaning, say, " and ", meaning.answer)


def keyword(word: str, value: object) -> str:
    """What to write in place of an unknown keyword of JobSpec; empty for one that nobody knows."""
    names = _names(OPTIONS)

    def say(setting: Setting) -> str:
        table, last, value = _known(setting, names)
        shown = "…" if value is None else toml(value) if isinstance(value, str | list | tuple) else repr(value)
        task = table.removeprefix("tasks.")
        return f'tasks={{"{task}": TaskSpec({last}={shown})}}' if task else f"{last}={shown}"

    meaning = _merged(meant(word, value, names))
    return "" if {name for name, _, _ in meaning.settings} & {*_OF_SUBMIT} else _write(meaning, say, ", ")


def variable(word: str, text: str, known: Mapping[str, Option]) -> str:
    """What to write in place of an unknown variable of gridtf; empty for one that nobody knows.

    Args:
        word: Its name.
        text: Its value.
        known: The variables that exist -> their options.
    """
    names = _names([*known.values(), *OPTIONS])

    def say(setting: Setting) -> str:
        option = names.get(setting[0])
        same = next((name for name, other in known.items() if option and other.key == option.key), "")
        value = _known(setting, names)[2] if option and option.kind.of_flag else setting[1]
        value = (
            "\n".join(value) if isinstance(value, list | tuple) else int(value) if isinstance(value, bool) else value
        )
        return f"{same}={shlex.quote(str(value))}" if same else ""

    return _write(_merged(meant(word.removeprefix(PREFIX), text, names)), say, " ")


def line(key: str, value: str | list[str]) -> str:
    """The line of a job file that sets a key. value: as text."""
    option = _names(OPTIONS).get(key) or next((other for other in OPTIONS if other.key.endswith(f".{key}")), None)
    if option and (option.kind is KINDS["whole"] or key == "nodes"):
        value = (re.match(r"\d+", str(value)) or ["2"])[0]
    return f"{key} = {toml(_known((key, value, ''), {key: option} if option else {})[2])}"


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a job file for a description of a job elsewhere, whose values are text; some of it may be left out.

    Args:
        data: Key -> value; tables in it stand for what is in them.
    """
    names = _names(OPTIONS)
    for word, value in data.items():
        if isinstance(value, Mapping) and "env" not in (word, _target(_word(word), rows("options"))):
            yield from lines(value)
            continue
        for setting in _merged(meant(word, value, {*names, *fields(JobSpec)})).settings[:1]:
            table, last, made = _known(setting, names)
            if made is not None:
                yield f"{table}{'.' if table else ''}{last} = {toml(made)}"


def file(name: str) -> str:
    """What to write for a file that is no job file, judged by the end of its name; empty for any other."""
    path = Path(name)
    answer = found((path.suffix.lstrip(".") or path.name).lower(), rows("files")) or ""
    return str(answer).format(file=shlex.quote(name), stem=shlex.quote(path.stem))


def task_key(word: str, value: object, job_keys: Collection[str]) -> str:
    """What to write in place of an unknown key of ``[tasks.TYPE]``.

    Args:
        word: The key as written.
        value: Its value.
        job_keys: The keys of the job itself.

    Returns:
        A hint; empty for a key that nobody knows.
    """
    if target := _target(_word(word), rows("task_keys")):
        return f"write {target} = {toml(as_list('command', value) if target == 'command' else value)}"
    if word in job_keys:
        return f"it is a key of the job: write {word} = {toml(value)} above the first [table]"
    return ""


def task_type(word: str) -> str:
    """What to write in place of an unknown task type; empty for a word that nobody uses for one."""
    name = _word(word)
    target = _target(name, rows("task_types")) or (name if name in TASK_TYPES else "")
    return f"write [tasks.{target}]" if target else ""


def as_list(name: str, value: object) -> list[str]:
    """The list that a string in its place stands for: words of a command or of types, lines of anything else."""
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    text = str(value)
    if name in ("command", "args", "container_command"):
        try:
            words = shlex.split(text) or [text]
        except ValueError:  # an open quote
            words = [text]
        return (as_program(words) if name == "command" else None) or words
    if name in ("serve", "serve_imports", "exclude", "nodelist", "after", "after_any", "after_failed"):
        return [word for word in re.split(r"[\s,]+", text) if word]
    return [line for line in text.splitlines() if line.strip()] or [text]


# --- commands


def command(word: str, rest: Sequence[str]) -> str:
    """What to write in place of a word that is no command.

    Args:
        word: The word.
        rest: The words after it.

    Returns:
        A hint; empty for a word that nobody would use for a command.
    """
    if word.startswith("-"):
        return f"a command comes first: gridtf submit {shlex.join([word, *rest])}"
    if word.endswith(".toml"):
        return f"write: gridtf submit {shlex.join([word, *rest])}"
    words = [(part, before[:1] == "-") for before, part in zip(["", *rest], rest, strict=False) if part[:1] != "-"]
    jobs = [part for part, _ in sorted(words, key=lambda word: word[1])]  # what follows an option may be its value
    tables = [rows("commands")] if "--" in rest else [rows("no_commands"), rows("commands")]
    answer = next(filter(None, (found(word.lower(), table) for table in tables)), "")
    if not answer and (program := as_program([word, *rest])):
        return f"write: gridtf submit -- {shlex.join(program)}"
    return str(answer).format(job=shlex.quote([*jobs, "JOB"][0]), rest=shlex.join(rest) or "JOBFILE")


def of_command(prog: str, flag: str, value: str) -> str:
    """What to write in place of an unknown option of a command without job options, such as ``gridtf logs``."""
    name = prog.rpartition(" ")[2]
    row = next((row for row in rows("of_commands") if name in row[0].split() and _word(flag) in row[1].split()), None)
    other = {"init": "FILE", **dict.fromkeys(rows("with_job")["commands"].split(), "JOB"), "logs": "N"}.get(name, "N")
    return row[2].format(value or other) if row else ""


def of_argument(prog: str) -> str:
    """What to write in place of a second argument of a command that takes one job; empty for other commands."""
    name = prog.rpartition(" ")[2]
    one = name in rows("with_job")["commands"].split() and name not in ("address", "report")
    return f"{prog} takes one job; write the command once for each" if one else ""


def as_program(words: Sequence[str]) -> list[str] | None:
    """The command that words without a ``--`` before them stand for; None where they are no command.

    Args:
        words: Such as ``["train.py", "--epochs", "3"]``, which lacks ``python``.
    """
    name = words[0].rsplit("/", 1)[-1] if words else ""
    interpreter = {".py": "python", ".sh": "bash"}.get(name[-3:])
    if interpreter:
        return [interpreter, *words]
    known = re.fullmatch(r"i?python[\d.]*|bash|sh|mpirun|mpiexec|srun|env|apptainer|singularity|conda|uv", name)
    return list(words) if known and len(words) > 1 else None
