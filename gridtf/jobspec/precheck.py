"""Checks before submission that a job's files and functions exist, without running or importing the user's code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.errors import SpecError, UsageError, nearest
from gridtf.jobspec.config import setup_by_source
from gridtf.jobspec.jobfile import refuse_requests
from gridtf.jobspec.placeholders import without_braces
from gridtf.jobspec.primitives import ID, spell
from gridtf.jobspec.spec import JobSpec, container_path
from gridtf.jobspec.units import format_walltime, parse_walltime

if TYPE_CHECKING:
    import ast

_PARSE_SECONDS = 10
_BASH = "bash cannot parse this"
_COMPLAINT = re.compile(r"^.*?: line \d+: (?:warning: )?(.*)", re.MULTILINE)
_PYTHON = re.compile(r"python[0-9.]*")
_SHELLS = ("bash", "sh")
# Commands of the shell: they change the shell that runs them, and are no programs.
_OF_A_SHELL = (".", "cd", "conda", "export", "mamba", "ml", "module", "source", "ulimit")
# Set-up lines that prepare the environment, and make no file of the program.
_ENVIRONMENT_LINE = re.compile(
    r"""\s*(\#.*|(module|ml|source|\.|export|ulimit|umask|set|unset|(conda|mamba)\ activate|eval\ "\$\((conda|mamba))
    \s[^;&|`]*)?\s*""",
    re.VERBOSE,
)
# They start a program several times, or submit a job of their own.
_STARTERS, _SUBMITTERS = ("srun", "mpirun", "mpiexec", "orterun", "horovodrun"), ("sbatch", "qsub")
_PLACEHOLDER = re.compile(r"\{[a-z_]+\}|\{params\.[\w-]+\}|\{\{ *[\w-]+ *\}\}")
# Times whose plain numbers are minutes, as Slurm's --time -> the least number that is probably meant as seconds.
_MINUTES = {"time": 24 * 60, "checkpoint_before": 1, "stall_after": 1}
_LEAST_MIB = 128  # a Python needs a tenth of it, one that has loaded TensorFlow more than twice as much


def check(spec: JobSpec, sources: Mapping[str, str]) -> None:
    """Check that a job's name, memory, folder, template, program, entry function and set-up lines are usable.

    Args:
        spec: The job; its ``chdir`` must be absolute.
        sources: Dotted key -> source, as in config.Configured.

    Raises:
        SpecError: For a name that would be taken for a job id, memory of a few MiB without a unit, a folder, a
            template, an image, a program, a script or an entry function that does not exist, for a Python script with
            a syntax error, and for set-up lines that bash cannot parse.
    """
    if spec.name and ID.fullmatch(spec.name):
        hint = f"begin it with a letter, such as run-{spec.name}"
        raise SpecError("name", f"{spec.name} would be taken for the id of a job", hint=hint)
    _check_memory(spec)
    needed = (("chdir", spec.chdir, Path.is_dir, "folder"), ("template", spec.template, Path.is_file, "file"))
    for key, path, is_one, kind in needed:
        if path and not _exists(key, is_one, Path(path)):
            raise SpecError(key, f"{path} is not a {kind}" if files.exists(path) else f"there is no {kind} {path}")
    if image := container_path(spec.container):
        _check_image(image, spec)
    if spec.entry:
        _check_entry(spec, spec.entry, Path(spec.chdir or "."))
    if spec.setup:
        _check_setup(setup_by_source(spec, sources))
    check_commands(spec, os.environ)


def check_commands(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Check that the programs of a job, and the scripts of Python and shells, exist.

    What may exist only in the job is not checked: programs if there are set-up lines, files if these may make some; and
    in a container, programs and absolute paths, which are its own.

    Args:
        spec: The job, as for check.
        environ: The environment, for its PATH and TMPDIR.

    Raises:
        SpecError: For a program or a script that does not exist, a Python script with a syntax error, a program that
            starts others, such as srun and sbatch, and a script for one.
    """
    for key, command in _commands(spec):
        _need_no_starter(key, command, spec, environ)
        _check_command(key, command, spec, environ)


def notes(spec: JobSpec) -> tuple[str, ...]:
    """Notes for the user on commands that are valid, but probably not what is meant; usually none. Pure.

    Args:
        spec: The job.

    Returns:
        One line each.
    """
    return (
        *(
            f"{key}: `{written}` passes a word; the placeholder is '{{{name}}}', in quotes, since tcsh removes braces"
            for key, command in _commands(spec)
            for written, name in without_braces(command)
        ),
        *filter(None, (_unit(key, getattr(spec, key), least) for key, least in _MINUTES.items())),
    )


def _unit(key: str, value: object, least: int) -> str:
    """A note on a time that others write in seconds or hours; empty for one whose unit is plain."""
    text = str(value).strip()
    if re.fullmatch("[0-9]+", text) and int(text) >= least:
        return f"{key}: {text} is in minutes, {format_walltime(parse_walltime(text))}; in seconds it is {text}s"
    if re.fullmatch("[0-9]+:[0-9]+", text):
        return f"{key}: {text} is in minutes and seconds, {format_walltime(parse_walltime(text))}; or write {text}:00"
    return ""


def _check_memory(spec: JobSpec) -> None:
    """Refuse memory that was meant in GiB: of a whole number without a unit, Slurm's MiB, no TensorFlow starts."""
    own = {f"tasks.{name}.mem": table.mem for name, table in spec.tasks.items()}
    for key, value in {"mem": spec.mem, "mem_per_task": spec.mem_per_task, **own}.items():
        text = str(value).strip()
        if re.fullmatch("[0-9]+", text) and int(text) < _LEAST_MIB:
            hint = f"write {text}G, or {text}M if that is meant"
            raise SpecError(key, f"{text} without a unit is {text} MiB, too few for TensorFlow", hint=hint)


def _commands(spec: JobSpec) -> Iterator[tuple[str, Sequence[str]]]:
    """(key, command) for each command of the job."""
    if spec.command:
        yield "command", spec.command
    for name, table in spec.tasks.items():
        if table.command and spec.count(name) != 0:
            yield f"tasks.{name}.command", table.command


def _exists(key: str, test: Callable[[Path], bool], path: Path) -> bool:
    try:
        return test(path)
    except OSError as error:
        raise SpecError(key, f"cannot access {path}: {error.strerror}") from None


def _check_setup(groups: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Let bash parse the lines of each source without running them: an open quote would swallow the script below."""
    first = 1
    for _, lines in groups:
        if problem := _syntax_error("".join(f"{line}\n" for line in lines)):
            what, *more = problem
            hint = "put lines that need shell options or aliases into a file, and source it in a set-up line"
            raise SpecError(f"setup.{first}", what, why=" ".join(more), hint=hint if _BASH in what else "")
        first += len(lines)


def _syntax_error(text: str) -> list[str]:
    """What bash says of some shell lines, without running them; empty if it has no objection."""
    import shutil
    import subprocess

    if re.search(r"(?<!\\)(\\\\)*\\\n\Z", text):  # bash -n accepts it
        return ["the last line ends in a backslash: the script's next line would be part of it"]
    bash = shutil.which("bash")
    if bash is None:  # the hosts of the job may have one
        return []
    try:
        complaints = subprocess.run(
            [bash, "-O", "extglob", "-n"],  # set-up lines may turn extended patterns on before they use them
            input=text.encode(errors="surrogateescape"),
            capture_output=True,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            timeout=_PARSE_SECONDS,
            check=False,
        ).stderr.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = _COMPLAINT.findall(complaints)
    return [f"{_BASH}: {lines[0]}", *lines[1:]] if lines else []


# --- commands


def _check_command(key: str, command: Sequence[str], spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Check the program of a command, and its script if it is Python or a shell."""
    program, *rest = command
    folder = Path(spec.chdir or ".")
    if _PLACEHOLDER.search(program):
        return
    if re.search(r"\s", program) and not _exists(key, Path.exists, folder / program):
        raise _one_word(key, command)
    same_path = not (spec.setup or spec.template or spec.contained)  # the job finds the programs that are found here
    same_files = not _may_make_files(spec)
    if "/" in program:
        found = _need_file(key, program, folder, environ) if same_files and _outside(program, spec) else None
        if found:
            _need_executable(key, program, found)
    else:
        found = next(_on_path(program, spec, environ), None)
        if not found and same_path:
            raise _no_program(key, command, folder, spec, environ)
    name = program.rpartition("/")[2]
    if _PYTHON.fullmatch(name):
        script, module = python_call(rest)
    elif name in _SHELLS and rest and not rest[0].startswith("-") and not any(_on_path(rest[0], spec, environ)):
        script, module = rest[0], ""
    else:
        return
    path = _need_file(key, script, folder, environ) if script and same_files and _outside(script, spec) else None
    if not (same_path and found and os.path.realpath(found) == os.path.realpath(sys.executable)):
        return  # another Python may take other syntax, and have other modules
    if path and path.suffix == ".py" and files.is_file(path) and path.stat().st_size <= files.MOST_BYTES:
        _parse(key, path)
    if module and found.parent == Path(sys.executable).parent and "PYTHONPATH" not in spec.env:
        top = module.partition(".")[0]
        here = files.exists(folder / top) or files.exists(folder / f"{top}.py")
        if top.isidentifier() and not (here or _installed(top)):
            raise _no_module(key, module, folder)


def _outside(path: str, spec: JobSpec) -> bool:
    """Whether a path is one of the hosts: in a container, the working folder is, and an absolute path may not be."""
    return not (spec.contained and path.startswith("/"))


def _may_make_files(spec: JobSpec) -> bool:
    """Whether a job may make files before its tasks start, which do not exist yet."""
    lines = (line for text in spec.setup for line in text.split("\n"))
    return bool(spec.template) or not all(map(_ENVIRONMENT_LINE.fullmatch, lines))


def _check_image(image: str, spec: JobSpec) -> None:
    path = Path(image)
    if _exists("container", Path.exists, path) or _may_make_files(spec):
        return
    made = f"`apptainer pull {path.name} docker://NAME:TAG` makes one"
    hint = _near(path) or (made if path.suffix == ".sif" else f"an image of a registry is written docker://{path.name}")
    raise SpecError("container", f"there is no image {image}", hint=hint)


def python_call(words: Sequence[str]) -> tuple[str, str]:
    """Find what Python runs: python(1). Pure.

    Args:
        words: The arguments of Python.

    Returns:
        (script, module), of which one is empty; both for ``-c`` and for standard input.
    """
    rest = iter(words)
    for word in rest:
        if word == "--":
            return next(rest, ""), ""
        if word == "-" or not word.startswith("-"):
            return word.removeprefix("-"), ""
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, "")
            continue
        for end, letter in enumerate(word[1:], 2):  # -uO is -u -O, and -um is -u -m
            value = word[end:]
            if letter in "cm":
                return "", (value or next(rest, "")) if letter == "m" else ""
            if letter in "WX":
                value or next(rest, "")
                break
    return "", ""


def _on_path(program: str, spec: JobSpec, environ: Mapping[str, str]) -> Iterator[Path]:
    """The programs of this name on the PATH."""
    paths = (place / program for place in _places(spec, environ))
    return (path for path in paths if os.access(path, os.X_OK) and files.is_file(path))


def _places(spec: JobSpec, environ: Mapping[str, str]) -> Iterator[Path]:
    """The folders on a PATH that the job sets, and on that of this process."""
    for variables in (spec.env, *(table.env for table in spec.tasks.values()), environ):
        yield from map(Path, filter(None, variables.get("PATH", "").split(os.pathsep)))


def _need_file(key: str, word: str, folder: Path, environ: Mapping[str, str]) -> Path | None:
    """The path of a script; None for one that may exist only in the job. Raises SpecError when it does not exist."""
    path = folder / word
    if _PLACEHOLDER.search(word):
        return None
    if _exists(key, Path.exists, path):
        return path
    own = [*files.OF_A_HOST, *filter(None, [environ.get("TMPDIR")])]
    if word.startswith("/") and any(path.is_relative_to(place) for place in own):
        return None
    raise SpecError(key, f"there is no file {path}", hint=_near_file(word, path, folder))


def _near_file(word: str, path: Path, folder: Path) -> str:
    if "$" in word or word.startswith("~"):
        return "no shell reads the command, so variables and ~ stay as they are: write the path itself"
    if files.exists(Path.cwd() / word):
        return f"{Path.cwd() / word} exists, but the working folder is {folder}: add --chdir ."
    if not files.is_folder(path.parent):
        return f"there is no folder {path.parent} either"
    return _near(path) or f"relative paths begin in the working folder, {folder}: choose another with --chdir"


def _near(path: Path) -> str:
    """A hint: the most similar name in the folder of a file that does not exist."""
    folder = path.parent
    return nearest(path.name, sorted(_names_in(folder)))


def _names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing where this user may not list it."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _need_executable(key: str, program: str, path: Path) -> None:
    if files.is_folder(path):
        raise SpecError(key, f"{path} is a folder, not a program", hint="write a program and its arguments")
    if not os.access(path, os.X_OK):
        hint = f"write {_interpreter(program)} {program}, or make it executable: chmod +x {program}"
        raise SpecError(key, f"{path} is not executable", hint=hint)


def _need_no_starter(key: str, command: Sequence[str], spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Refuse a command that would start the tasks once more, and a script whose requests gridtf does not read."""
    import shlex

    program, *rest = command
    name = program.rpartition("/")[2]
    if name in (*_SUBMITTERS, *_STARTERS):
        first = next((place for place, word in enumerate(rest) if any(_on_path(word, spec, environ))), len(rest))
        without = shlex.join(rest[first:]) or "python train.py"
        if name in _SUBMITTERS:
            what = f"{name} would submit a job of its own in each task"
            hint = f"write the program: -- {without}; or call gridtf_run in a script for {name}"
            raise SpecError(key, what, hint=hint)
        raise SpecError(
            key,
            f"each task would call {name}, which starts the program on all hosts once more, or waits for ever",
            hint=f"gridtf starts a process for each task, --workers N of them: -- {without}; as the ranks of an MPI "
            f"world: --mpi -- {without}",
        )
    script = Path(spec.chdir or ".", rest[0] if name in _SHELLS and rest else program)
    try:
        refuse_requests(script)
    except UsageError as error:
        raise SpecError(key, error.what, hint=error.hint) from None


def _interpreter(script: str) -> str:
    return "python" if script.endswith(".py") else "bash"


def _one_word(key: str, command: Sequence[str]) -> SpecError:
    """The error for a whole command line in one word."""
    import shlex

    program = command[0]
    try:
        words = [] if re.search(r"[;&|<>$`]", program) else [*shlex.split(program), *command[1:]]
    except ValueError:  # an open quote
        words = []
    if words:
        hint = f"write the words apart: -- {shlex.join(words)}; in a file: {key} = {spell(words)}"
    else:
        hint = f"let a shell read it: -- bash -c {shlex.quote(program)}"
    return SpecError(key, f"{program!r} is one word, and no program has this name", hint=hint)


def _no_program(key: str, command: Sequence[str], folder: Path, spec: JobSpec, environ: Mapping[str, str]) -> SpecError:
    program = command[0]
    if files.is_file(folder / program):
        runner = f"{_interpreter(program)} " if program.endswith((".py", ".sh")) else "./"
        hint = f"write {runner}{program} for the file in {folder}"
    elif re.fullmatch(r"[A-Za-z_]\w*=.*", program):
        hint = f"no shell reads the command; set the variable by an option: --env {program}"
    elif program in _OF_A_SHELL:
        hint = f"it is a command of the shell; write it as a set-up line: --setup {program!r}"
        if len(command) > 1:
            hint = f"it is a command of the shell; write it as a set-up line: --setup '{program} {command[1]} …'"
    else:
        known = {name for place in _places(spec, environ) for name in _names_in(place)}
        hint = nearest(program, sorted(known)) or "if a module has it, load that first: --setup 'module load …'"
    return SpecError(key, f"there is no program {program} on the PATH", hint=hint)


# --- entry functions


def _check_entry(spec: JobSpec, entry: str, folder: Path) -> None:
    module, function = entry.split(":")
    base = folder.joinpath(*module.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    path = next((path for path in files if _exists("entry", Path.is_file, path)), None)
    if path is None:
        # with another Python, set-up lines, a container or PYTHONPATH, the module may exist in the job alone
        elsewhere = spec.python or spec.setup or spec.contained or "PYTHONPATH" in spec.env
        if not (elsewhere or _installed(module)):
            raise _no_module("entry", module, folder)
        return
    defined = _names(path)
    if defined is None or function in defined:
        return
    functions = [name for name, is_function in defined.items() if is_function]
    hint = nearest(function, list(defined)) or f"functions in this file: {', '.join(functions) or 'none'}"
    raise SpecError("entry", f"{path} has no function {function}", hint=hint)


def _no_module(key: str, module: str, folder: Path) -> SpecError:
    known = sorted(name.removesuffix(".py") for name in _names_in(folder) if name.endswith(".py"))
    hint = nearest(module, known) or "the module must be in the working folder (--chdir) or be installed"
    return SpecError(key, f"there is no module {module} in {folder}", hint=hint)


def _installed(module: str) -> bool:
    from importlib.util import find_spec

    package = module.partition(".")[0]
    return package != "__main__" and find_spec(package) is not None  # __main__ is gridtf itself here


def _parse(key: str, path: Path) -> ast.Module:
    """Parse a Python file. Raises SpecError for a file that cannot be read or is not Python."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on "\\d" and the like, which the job itself will print
            return ast.parse(files.read(path, str(path))[0], filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        line = getattr(error, "lineno", None) or 1
        raise SpecError(key, f"{path}:{line}: {getattr(error, 'msg', error)}") from None
    except OSError as error:
        raise SpecError(key, f"cannot read {path}: {error.strerror}") from None


def _names(path: Path) -> dict[str, bool] | None:
    """Top-level name -> whether it is a function; None when the names are unknown (``import *``).

    Raises:
        SpecError: For a file that cannot be read or is not Python.
    """
    import ast

    tree = _parse("entry", path)
    names: dict[str, bool] = {}
    blocks: list[ast.stmt] = list(tree.body)
    while blocks:
        statement = blocks.pop(0)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = True
        elif isinstance(statement, ast.ClassDef):
            names[statement.name] = False
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*":
                    return None
                names[alias.asname or alias.name.partition(".")[0]] = False
        else:
            blocks.extend(node for node in ast.walk(statement) if isinstance(node, ast.stmt) and node is not statement)
            stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            names.update((node.id, False) for node in stored if isinstance(node.ctx, ast.Store))
    return names
