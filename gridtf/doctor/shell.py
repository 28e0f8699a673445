"""Examines what a job has of the user's shell: Python, variables, environment modules. Judging is pure."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.doctor import measure
from gridtf.findings import Finding, Items, Level, Setting, missing
from gridtf.jobspec.layers import expand
from gridtf.jobspec.spec import JobSpec, container_programs, no_container_program
from gridtf.schedulers import commands
from gridtf.text import toml

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_COMMAND_LIMIT = 6.0  # seconds for a command of this host
_SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")  # on the PATH of any job
_MODULES = (
    "$MODULESHOME/init/bash",
    "$LMOD_PKG/init/bash",
    "/etc/profile.d/modules.sh",
    "/etc/profile.d/lmod.sh",
    "/usr/share/modules/init/bash",
    "/usr/share/lmod/lmod/init/bash",
)


def python(spec: JobSpec, environ: Mapping[str, str]) -> Items:
    """Examine the Python that a job's command ``python`` runs.

    Args:
        spec: What files and variables set.
    """
    check, load = "python", "write setup = […] with the lines that activate the environment of your program"
    if spec.container or spec.container_command:
        yield Finding(Level.OK, check, "tasks run in a container, whose Python counts")
        yield _container(spec, environ)
        return
    chosen = spec.python or "python"
    found = shutil.which(chosen, path=environ.get("PATH"))
    if "/" in chosen and found is None:
        hint = "name another one, or leave `python` out for the one of the PATH"
        yield Finding(Level.WARNING, check, f"`python` is {chosen}, which is no program on this host", hint)
        return
    if spec.setup:
        yield Finding(Level.OK, check, "set-up lines of the files choose the Python of a job")
        return
    if found is None:
        yield Finding(Level.WARNING, check, f"there is no program {chosen} on the PATH", f"write python3, or {load}")
        return
    yield judge_python(found, measure.versions(found, _COMMAND_LIMIT), load)


def _container(spec: JobSpec, environ: Mapping[str, str]) -> Finding:
    programs = container_programs(spec)
    if found := next((name for name in programs if shutil.which(name, path=environ.get("PATH"))), None):
        return Finding(Level.OK, "container", f"{found} makes the containers of tasks")
    if spec.setup:
        what = f"set-up lines must load {' or '.join(programs)}, which this shell does not have"
        return Finding(Level.OK, "container", what)
    error = no_container_program(spec, os.uname().nodename)
    hint = f"{error.hint}; whether the hosts of a job have it: gridtf doctor --probe"
    return Finding(Level.WARNING, "container", error.what, hint)


def judge_python(program: str, versions: Mapping[str, str | None], load: str) -> Finding:
    """Judge a Python by its versions. Pure.

    Args:
        program: Its path.
        versions: As measure.versions returns them.
        load: What to do for another Python.
    """
    if error := versions.get("error"):
        return Finding(Level.WARNING, "python", error, load)
    version, tensorflow = versions.get("version"), versions.get("tensorflow")
    if not tensorflow:
        hint = f"pip install 'tensorflow[and-cuda]', or {load}"
        return Finding(Level.WARNING, "python.tensorflow", f"{program} (Python {version}) has no TensorFlow", hint)
    return Finding(Level.OK, "python", f"{program} is Python {version} with TensorFlow {tensorflow}")


def shell(spec: JobSpec, scheduler: Scheduler | None, environ: Mapping[str, str]) -> Items:
    """Examine what a job has of the user's shell: its Python environment, and the command ``module``.

    Args:
        spec: What files and variables set.
        scheduler: The scheduler that jobs go to; None where there is none to use.
    """
    inherits = scheduler is None or scheduler.login.inherits_environment
    program = shutil.which("python", path=environ.get("PATH"))
    if scheduler and not inherits:
        yield from environment(environ, spec, scheduler.title, program)
    given = dict(environ) if inherits else {name: environ[name] for name in ("HOME", "USER") if name in environ}
    given.setdefault("PATH", os.defpath)
    initial = _first_file(_MODULES, environ)
    known = commands.run_command(["bash", "-c", "type -t module"], limit=_COMMAND_LIMIT, environ=given).code == 0
    yield from modules(known, initial, environ, spec)


def _first_file(paths: Iterable[str], environ: Mapping[str, str]) -> str:
    for text in paths:
        with contextlib.suppress(ValueError):
            path = expand(text, environ)
            if files.is_file(path):
                return path
    return ""


def environment(environ: Mapping[str, str], spec: JobSpec, title: str, program: str | None) -> Items:
    """Judge what a job lacks that does not inherit the environment of the shell that submits it. Pure.

    Args:
        environ: The environment of that shell.
        spec: What files and variables set.
        title: The scheduler's name.
        program: The path of ``python`` on the PATH of that shell; None where there is none.
    """
    check, what = "shell.environment", f"a job of {title} does not inherit the environment of this shell"
    lines = activation(environ)
    if not lines and program and (folder := os.path.dirname(program)) not in _SYSTEM:  # noqa: PTH120
        lines = [f"export PATH={shlex.quote(folder)}:$PATH"]
    if lines and not spec.setup:
        comment = f"{what}, where python is {program}"
        yield from missing(check, comment, Setting("setup", lines, comment))
    else:
        yield Finding(Level.OK, check, f"{what}: set-up lines and `env` make it")


def activation(environ: Mapping[str, str]) -> list[str]:
    """The set-up lines that activate the Python environment of a shell; empty where none is active. Pure."""
    if path := environ.get("VIRTUAL_ENV"):
        return [f"source {shlex.quote(path)}/bin/activate"]
    prefix, program = environ.get("CONDA_PREFIX"), environ.get("CONDA_EXE")
    if prefix and program:
        base = program.removesuffix("/bin/conda")
        return [f"source {shlex.quote(base)}/etc/profile.d/conda.sh", f"conda activate {shlex.quote(prefix)}"]
    return []


def modules(known: bool, initial: str, environ: Mapping[str, str], spec: JobSpec) -> Items:
    """Judge whether set-up lines can load environment modules. Pure.

    Args:
        known: Whether a job's script finds the command ``module``.
        initial: The file that defines it; empty where there is none.
        environ: The environment of this shell.
        spec: What files and variables set.
    """
    check, source = "shell.module", f"source {shlex.quote(initial)}"
    has = any(re.match(r"BASH_FUNC_module|LOADEDMODULES$|MODULESHOME$|LMOD_", name) for name in environ)
    written = any(re.search(r"(^|\n)\s*(source|\.)\s.*(modul|lmod)", lines) for lines in spec.setup)
    calls = any(re.search(r"(^|[\n;&|])\s*(module|ml)\s", lines) for lines in spec.setup)
    first = [] if known else [source]
    if known or (initial and written):
        yield Finding(Level.OK, check, "set-up lines can load modules: `module load …`")
    elif initial and (has or calls):
        who = "set-up lines call" if calls else "this shell has"
        what = f"the script of a job does not know the command module, which {who}"
        yield Finding(Level.WARNING, check, what, f"write setup = {toml([source, 'module load …'])}")
    elif initial:
        yield Finding(Level.OK, check, f"set-up lines can load modules after `{source}`")
    elif calls:
        what = "set-up lines call module, but this host has no environment modules"
        yield Finding(Level.WARNING, check, what, "gridtf doctor --probe shows whether these lines work where jobs run")
    else:
        yield Finding(Level.OK, check, "this host has no environment modules")
    if known or initial:
        yield Setting("setup", [*first, "module load cuda"], "environment modules", example=True)
    if lines := activation(environ):
        yield Setting("setup", lines, "the Python environment of this shell", example=True)
    else:
        yield Setting("setup", ["source ~/venv/bin/activate"], "a Python environment of your own", example=True)
