"""Containers: the command line and the environment of a task that runs inside one.

Agents run outside. Each wraps the command of its tasks just before it starts them: in Apptainer, Singularity or what
container_command says. No process namespace is made, so that the agent finds and ends every process of a task.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import contract, files
from gridtf.bootstrap.agent import api
from gridtf.bootstrap.plan import environment as plans
from gridtf.errors import GridtfError
from gridtf.jobspec.placeholders import fill
from gridtf.jobspec.spec import JobSpec, container_path, container_programs, no_container_program
from gridtf.jobspec.units import LONGEST_VARIABLE
from gridtf.values import Value

if TYPE_CHECKING:
    from gridtf.bootstrap.agent.supervisor import Program
    from gridtf.bootstrap.plan.placement import PlacedTask

# Each takes variables for the container in others with a prefix.
_PREFIXES = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
_OF_RUNTIMES = ("APPTAINER", "SINGULARITY")
# They bring the driver's libraries in; the file exists where the driver does.
_DRIVERS = {"/dev/nvidiactl": "--nv", "/dev/kfd": "--rocm"}
# Those of the container are the image's or Apptainer's to set; the job's are for the program that makes the container.
_OF_THE_HOST = ("PATH", "LD_LIBRARY_PATH", "HOME", "UID", "GID")


class Wrapper(api.Wrapper):
    """Wraps the command of a task, or of the check, just before it is run."""

    def prepare(self) -> None:
        self._entrance = find(self.view.plan.spec, self.view.state.host, self.view.system.environ)

    def wrapped(self, task: PlacedTask, program: Program) -> Program:
        plan, local = self.view.plan, self.view.state.local_dir
        names = {name for name in (contract.STAGED, *program.own()) if name in program.env}
        package = plan.spec.check != "off" or plans.runs_gridtf(plan, task)
        folders = [plan.attempt.run.path, *([local] if local else []), *self.view.folders]
        folders += [plans.HOME] if package else []
        about = self._entrance, plan.spec, program.argv, plan.cwd, folders, names
        argv = command(*about, gpus=task.gpus > 0)
        inside = environment(self._entrance, program.env, names)
        return program.replace(argv=argv, env=inside, entrance=argv[: len(argv) - len(program.argv)])


class Entrance(Value):
    """How the tasks of a host enter their container.

    Attributes:
        program: Path of the program that makes the container.
        prefix: Of the variables that it passes on without it; empty for a container_command.
        drivers: Its options for the GPUs of this host.
    """

    program: str
    prefix: str = ""
    drivers: tuple[str, ...] = ()


def find(spec: JobSpec, host: str, environ: Mapping[str, str]) -> Entrance:
    """Find the program that makes the containers of a job on this host.

    Args:
        spec: The job, with a container or a container_command.
        host: This host, for messages.
        environ: The environment, for its PATH.

    Raises:
        GridtfError: This host has no such program, or does not see the image.
    """
    path = environ.get("PATH", "")
    image = container_path(spec.container)
    if image and not files.exists(image):
        hint = "it must be on a file system that all hosts share"
        raise GridtfError(f"host {host} does not see the container's image {image}", hint=hint)
    for name in container_programs(spec):
        if (found := shutil.which(name, path=path)) and spec.container_command:
            return Entrance(found)
        if found:
            drivers = tuple(flag for file, flag in _DRIVERS.items() if Path(file).exists())
            return Entrance(found, _PREFIXES[name], drivers)
    raise no_container_program(spec, host)


def command(
    entrance: Entrance,
    spec: JobSpec,
    argv: Sequence[str],
    cwd: Path,
    folders: Iterable[Path],
    variables: Iterable[str],
    *,
    gpus: bool,
) -> list[str]:
    """The command line that runs a task in its container. Pure.

    Args:
        entrance: As find returns it.
        spec: The job.
        argv: The task's own command line.
        cwd: Its working folder.
        folders: The folders that it needs at their own paths, besides the job's binds.
        variables: The names of the variables that gridtf and the job set.
        gpus: Whether it has GPUs.
    """
    binds = [(str(folder), str(folder), "") for folder in _topmost([cwd, *folders])]
    binds += [split_bind(text) for text in spec.container_binds]
    image = spec.container or ""
    if spec.container_command:
        lists = {"bind": [":".join(filter(None, bind)) for bind in binds], "env": sorted(variables)}
        words = [item for word in spec.container_command[1:] for item in _filled(word, image, cwd, lists)]
        return [entrance.program, *words, *argv]
    options = [f"--bind={':'.join(_escaped(part) for part in bind if part)}" for bind in binds]
    drivers = entrance.drivers if gpus else ()
    return [entrance.program, "exec", *drivers, *options, f"--pwd={cwd}", image, *argv]


def environment(entrance: Entrance, env: Mapping[str, str], variables: Iterable[str]) -> dict[str, str]:
    """The environment with which the container of a task is made. Pure.

    Apptainer passes its environment on, unless the site has set APPTAINER_CLEANENV. What gridtf and the job set reaches
    the task in any case, by variables with a prefix.

    Args:
        entrance: As find returns it.
        env: The environment of the task.
        variables: The names of the variables that gridtf and the job set.
    """
    made = dict(env)
    for name in variables if entrance.prefix else ():
        if name in env and name not in _OF_THE_HOST and not name.startswith(_OF_RUNTIMES):
            text = _unevaluated(env[name])
            if len(f"{entrance.prefix}{name}={text}".encode()) <= LONGEST_VARIABLE:
                made[entrance.prefix + name] = text
    return made


def split_bind(text: str) -> tuple[str, str, str]:
    """Split ``SOURCE[:TARGET[:MODE]]``: source, target and mode, which may be empty."""
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    return source, target or source, mode


def _topmost(folders: Iterable[Path]) -> list[Path]:
    """Without those that lie below another one."""
    distinct = list(dict.fromkeys(folders))
    return [folder for folder in distinct if not any(other in folder.parents for other in distinct)]


def _filled(word: str, image: str, cwd: Path, lists: Mapping[str, Sequence[str]]) -> list[str]:
    """A word of container_command; one with {bind} or {env} once for each of them."""
    word = fill(word, {"image": image, "chdir": str(cwd)})
    for name, items in lists.items():
        if f"{{{name}}}" in word:
            return [fill(word, {name: item}) for item in items]
    return [word]


def _escaped(path: str) -> str:
    """A path in an option of Apptainer, which splits at commas and colons."""
    return re.sub(r"([\\,:])", r"\\\1", path)


def _unevaluated(text: str) -> str:
    """A value that comes out as it is where Apptainer lets its shell evaluate it, within double quotes."""
    return re.sub(r"([\\$`])", r"\\\1", text)
