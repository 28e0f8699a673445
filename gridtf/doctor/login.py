"""Examines this host and its scheduler: configuration, run root, Python, shell. Judging is pure, trying is not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gridtf import schedulers
from gridtf.doctor.aside import Aside
from gridtf.errors import GridtfError, SchedulerError, UsageError
from gridtf.findings import Examination, Finding, Level, Setting, collect, failure, missing
from gridtf.jobspec import config
from gridtf.jobspec.precheck import OF_A_HOST
from gridtf.jobspec.spec import JobSpec
from gridtf.run.rundir import RUN_ROOT, need_safe
from gridtf.schedulers import batch
from gridtf.text import toml

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

Items = Iterator[Finding | Setting]

_PATIENCE = 8.0  # seconds for all parts, which run side by side
_COMMAND_PATIENCE = 6.0  # seconds for a command of this host
_FEW_BYTES, _FEW_FILES = 1 << 30, 1000
_TRIED = 1 << 20  # bytes that are written to the run root, and removed again
# File systems that other hosts can mount; others lie on a disk of this host. Those in its memory are batch.MEMORY.
_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|fhgfs|ceph|glusterfs|panfs|pvfs2|wekafs|afs|cifs|smb3|dvs|ocfs2|gfs2|9p|virtiofs|quobyte|"
    r"fuse\.(ceph.*|glusterfs|sshfs|moosefs|mfs|juicefs|quobyte)"
)
# Where sites let users keep large files, as run_root takes them.
_ROOTS = ("$SCRATCH", "$PSCRATCH", "$WORK", "$WORKDIR", "$PROJECT", "/scratch/$USER", "/work/$USER", "/data/$USER", "~")
_ELSEWHERE = "write run_root = … with a folder on a file system that all hosts share"
_SYSTEM = ("/usr/local/bin", "/usr/bin", "/bin")  # on the PATH of any job
_MODULES = (
    "$MODULESHOME/init/bash",
    "$LMOD_PKG/init/bash",
    "/etc/profile.d/modules.sh",
    "/etc/profile.d/lmod.sh",
    "/usr/share/modules/init/bash",
    "/usr/share/lmod/lmod/init/bash",
)
_SHOW_PYTHON = """\
import sys, platform
print(sys.executable)
print(platform.python_version())
try:
    from importlib import metadata, util
    if util.find_spec("tensorflow"):
        names = metadata.packages_distributions().get("tensorflow", []) if sys.version_info >= (3, 10) else []
        found = [metadata.version(name) for name in sorted(names) if "tensorflow" in name or "tf" in name]
        print(found[0] if found else "of an unknown version")
except ImportError:
    pass
"""


class Site(NamedTuple):
    """What is known before anything is asked.

    Attributes:
        given: What the site's file, the user's file and variables set.
        scheduler: The scheduler that jobs go to; None where there is none to use.
        findings: On these, and on the scheduler if there is none.
        valid: Whether they are valid.
    """

    given: config.Configured
    scheduler: Scheduler | None
    findings: tuple[Finding, ...]
    valid: bool = True


def examine(environ: Mapping[str, str], folder: Path) -> Examination:
    """Examine this host and its scheduler, as a job submitted from a folder would meet them.

    Args:
        environ: The environment.
        folder: The working folder.

    Returns:
        Findings and settings; it takes ten seconds at most.
    """
    begin = time.monotonic()
    site = look(environ, folder)
    title = site.scheduler.title if site.scheduler else ""
    parts: list[tuple[Finding, Aside[Examination]]] = []

    def ask(check: str, silence: str, work: Callable[[], Items | Examination], level: Level = Level.FAILURE) -> None:
        parts.append((Finding(level, check, f"{silence} within {_PATIENCE:g} s", batch.TRY_LATER), _aside(check, work)))

    if site.scheduler:
        work = partial(site.scheduler.examine, environ, site.given)
        ask("scheduler", f"{title} has not answered all questions", work)
    root = Path(folder, site.given.spec.run_root or RUN_ROOT)
    ask("run_root", f"the file system of {root} has not answered", partial(run_root, site, environ, folder, root))
    ask("python", "python has not answered", partial(python, site.given.spec, environ), Level.WARNING)
    ask("shell", "bash has not answered", partial(shell, site, environ), Level.WARNING)
    found: list[Finding | Setting] = [*site.findings]
    for silent, part in parts:
        answer = part.result(begin + _PATIENCE)
        found += [silent] if answer is None else [*answer.findings, *answer.settings]
        if answer == Examination() and silent.check == "scheduler":
            found.append(Finding(Level.OK, "scheduler", f"jobs go to {title}, which says no more about this site"))
    return collect(found) if site.valid else _without_settings(collect(found))


def _without_settings(found: Examination) -> Examination:
    """Leave out what may be missing, where a file that may have it is not valid."""
    hints = {f"write {setting.line}" for setting in found.settings}
    return Examination(tuple(finding for finding in found.findings if finding.hint not in hints))


def _aside(check: str, work: Callable[[], Items | Examination]) -> Aside[Examination]:
    def examination() -> Examination:
        found: list[Finding | Setting] = []
        try:
            made = work()
            found += [*made.findings, *made.settings] if isinstance(made, Examination) else []
            for item in made if not isinstance(made, Examination) else ():
                found.append(item)
        except GridtfError as error:
            found.append(failure(check, error))
        except Exception as error:  # of a plugin, or of gridtf itself: the other parts go on
            hint = "this is a bug in gridtf, or in the plugin of the scheduler"
            found.append(Finding(Level.FAILURE, check, f"{type(error).__name__}: {error}", hint))
        return collect(found)

    return Aside(examination)


# --- files and scheduler


def look(environ: Mapping[str, str], folder: Path) -> Site:
    """Read files and variables, and find the scheduler that jobs go to.

    Args:
        environ: The environment.
        folder: The working folder.
    """
    given, findings = configuration(environ, folder)
    valid = all(finding.level != Level.FAILURE for finding in findings)
    try:
        name = given.spec.scheduler or schedulers.to_submit_to(environ)
        return Site(given, schedulers.get(name), findings, valid)
    except GridtfError as error:
        return Site(given, None, (*findings, failure("scheduler", error)), valid)


def configuration(environ: Mapping[str, str], folder: Path) -> tuple[config.Configured, tuple[Finding, ...]]:
    """Read the site's file, the user's file and the variables.

    Args:
        environ: The environment.
        folder: The working folder.

    Returns:
        Their values, or none where one is not valid; and findings.
    """
    check, command = "configuration", ("true",)

    def read(*, limited: bool) -> config.Configured:
        return schedulers.with_options(
            lambda table, complete: config.configure(
                None, (), command, environ, folder, table, complete=complete, limited=limited
            )
        )

    try:
        made = read(limited=False)
    except GridtfError as error:
        return config.Configured(JobSpec(command=command), {}), (failure(check, error),)
    names = [str(path) for path, _, _ in config.general_files(environ) if path.is_file()]
    valid = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} valid" if names else "no site's or user's file"
    notes = [note for note in made.notes if note != config.UNREAD]
    findings = [Finding(Level.WARNING, check, note, "mend or remove that line") for note in notes]
    findings = findings or [Finding(Level.OK, check, valid)]
    try:
        read(limited=True)
    except UsageError as error:  # a key that the site requires
        flag, _, what = error.what.partition(": ")
        key = flag.lstrip("-").replace("-", "_")
        hint = f"write {key} = …{f'; {error.hint}' if error.hint else ''}"
        findings.append(Finding(Level.WARNING, f"{check}.limits", f"{key}: {what} ({error.why})", hint))
    return made, tuple(findings)


# --- the run root


def run_root(site: Site, environ: Mapping[str, str], folder: Path, root: Path) -> Items:
    """Examine the folder for run directories: who sees it, and what can be done there.

    Args:
        site: What is set, and the scheduler.
        environ: The environment, for other folders.
        folder: The working folder.
        root: The run root.
    """
    if site.scheduler and site.scheduler.name != "local":
        mounts = batch.own_mounts()
        elsewhere, on_network = suggestion(environ, mounts)
        working = Path(site.given.spec.chdir or folder)
        if why := _private(working, mounts):
            better = elsewhere.removesuffix(f"/{RUN_ROOT}")
            hint = f"work in a folder that all hosts share: cd {better or '…'}"
            yield Finding(
                Level.FAILURE, "chdir.shared", f"jobs begin in {working}, which no other host sees: {why}", hint
            )
        if not (why and root.is_relative_to(working)):
            yield from shared(root, mounts, elsewhere, on_network=on_network)
        key, package = "gridtf.shared", Path(__file__).parent
        if why := batch.not_shared(package, mounts):
            hint = "install it into an environment in your home folder, or on another file system that all hosts share"
            yield Finding(Level.FAILURE, key, f"jobs run gridtf from {package}, but {why}", hint)
    yield from usable(root)
    if site.scheduler:
        yield from _submittable(site.given.spec, site.scheduler, folder)


def shared(root: Path, mounts: str, elsewhere: str, *, on_network: bool) -> Items:
    """Judge whether the other hosts of a job see a folder. Pure.

    Args:
        root: The run root.
        mounts: Content of /proc/self/mounts.
        elsewhere: Another folder, as run_root takes it; empty where none is known.
        on_network: Whether that one is on a network's file system.
    """
    check = "run_root.shared"
    mount, kind = batch.file_system(root, mounts)
    why = _private(root, mounts)
    if _NETWORK.fullmatch(kind) and not why:
        yield Finding(Level.OK, check, f"run directories are made in {root}, on {mount} ({kind})")
        return
    setting = Setting(
        "run_root", elsewhere, f"run directories belong where all hosts see them, {root} is not such a place"
    )
    hint = f"write {setting.line}" if elsewhere else _ELSEWHERE
    if why:
        yield Finding(Level.FAILURE, check, f"no other host sees the run directories in {root}: {why}", hint)
        yield from [setting] if elsewhere else []
    elif on_network:
        yield from missing(check, f"{root} lies on a disk ({kind}), which other hosts may not see", setting)
    else:
        hint = "if compute hosts see it under the same path, all is well; else " + _ELSEWHERE
        yield Finding(Level.WARNING, check, f"{root} lies on a disk of this host ({kind} on {mount})", hint)


def _private(folder: Path, mounts: str) -> str:
    """Why no other host sees a folder; empty where others may see it. Pure."""
    place = next((place for place in OF_A_HOST if folder.is_relative_to(place)), "")
    return batch.not_shared(folder, mounts) or (f"each host has its own {place}" if place else "")


def suggestion(environ: Mapping[str, str], mounts: str) -> tuple[str, bool]:
    """A folder for run directories that this user can write, on a network's file system if there is one.

    Args:
        environ: The environment, for variables such as SCRATCH.
        mounts: Content of /proc/self/mounts.

    Returns:
        (folder, on_network): the folder as run_root takes it, such as ``/scratch/$USER/gridtf-runs``, empty where none
        is found; whether it is on a file system that other hosts can mount.
    """
    found: dict[bool, str] = {}
    for text in _ROOTS:
        with contextlib.suppress(ValueError, OSError, RuntimeError):
            place = Path(config.expand(text, environ)).expanduser()
            kind = batch.file_system(place.resolve(), mounts)[1]
            if place.is_absolute() and os.access(place, os.W_OK) and not _private(place, mounts):
                found.setdefault(_NETWORK.fullmatch(kind) is not None, f"{text}/{RUN_ROOT}")
    return (found[True], True) if True in found else (found.get(False, ""), False)


def usable(root: Path) -> Items:
    """Try out in a folder, or in the one above it that exists, what gridtf does in a run root."""
    place = next(folder for folder in (root, *root.parents) if folder.is_dir())
    choose = "choose another folder: write run_root = …"
    try:
        need_safe(root)
        folder = Path(tempfile.mkdtemp(prefix=".gridtf-doctor-", dir=place))
    except OSError as error:
        yield Finding(Level.FAILURE, "run_root.write", f"cannot write in {place}: {error.strerror}", choose)
        return
    try:
        yield from _tried(folder, place, choose)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    yield from _space(place)


def _tried(folder: Path, place: Path, choose: str) -> Items:
    old, new = folder / "old", folder / "new"
    try:
        old.write_bytes(b"old")
        new.write_bytes(bytes(_TRIED))
    except OSError as error:
        yield Finding(Level.FAILURE, "run_root.write", f"cannot write 1 MiB in {place}: {error.strerror}", choose)
        return
    try:
        new.replace(old)
        whole = old.stat().st_size == _TRIED
    except OSError as error:
        what = f"files in {place} cannot be renamed: {error.strerror}"
        yield Finding(Level.FAILURE, "run_root.rename", what, choose)
        return
    if not whole:
        what = f"in {place} a renamed file does not replace the one of that name"
        yield Finding(Level.FAILURE, "run_root.rename", what, choose)
        return
    try:
        with old.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        what = f"files in {place} cannot be locked ({error.strerror}): gridtf needs no locks, but HDF5 does"
        yield Finding(Level.WARNING, "run_root.lock", what, 'write [env] and below it HDF5_USE_FILE_LOCKING = "FALSE"')
        return
    yield Finding(Level.OK, "run_root.write", f"files in {place} can be written, renamed and locked")


def _space(place: Path) -> Items:
    status = os.statvfs(place)
    size = status.f_bavail * status.f_frsize
    free = f"{size / (1 << 30):.0f} GiB" if size >= _FEW_BYTES else f"{size / (1 << 20):.0f} MiB"
    if size < _FEW_BYTES:
        hint = "free some space, or write run_root = … with another folder"
        yield Finding(Level.WARNING, "run_root.space", f"{free} are free in {place}", hint)
    elif status.f_files and status.f_favail < _FEW_FILES:
        hint = "remove some files, or write run_root = … with another folder"
        yield Finding(Level.WARNING, "run_root.space", f"{place} has room for {status.f_favail} more files", hint)
    else:
        yield Finding(Level.OK, "run_root.space", f"{free} are free in {place}")
    if shutil.which("quota"):
        with contextlib.suppress(SchedulerError):
            over = batch.run_command(["quota", "-q"], limit=2.0).out.split("\n")[0].strip()  # only what is over a quota
            if over:
                yield Finding(Level.WARNING, "run_root.quota", f"a quota of yours is used up: {over}", "see `quota`")


def _submittable(spec: JobSpec, scheduler: Scheduler, folder: Path) -> Items:
    """Prepare a job as submit does, up to the command that submits it."""
    from gridtf.login import submission

    job = replace(spec, command=("true",), entry=None, scheduler=scheduler.name, chdir=spec.chdir or str(folder))
    try:
        submission.command(submission.prepare(job))
    except GridtfError as error:
        yield failure("job", error)


# --- Python and the shell


def python(spec: JobSpec, environ: Mapping[str, str]) -> Items:
    """Examine the Python that a job's command ``python`` runs.

    Args:
        spec: What files and variables set.
        environ: The environment.
    """
    check, load = "python", "write setup = […] with the lines that activate the environment of your program"
    if spec.setup:
        yield Finding(Level.OK, check, "set-up lines of the files choose the Python of a job")
        return
    found = shutil.which("python", path=environ.get("PATH"))
    if found is None:
        yield Finding(Level.WARNING, check, "there is no program python on the PATH", f"write python3, or {load}")
        return
    try:
        answer = batch.run_command([found, "-c", _SHOW_PYTHON], limit=_COMMAND_PATIENCE)
    except SchedulerError as error:
        yield Finding(Level.WARNING, check, f"{found} does not run: {error.what}", load)
        return
    yield judge_python(found, answer.code, answer.out.splitlines(), answer.last_line, load)


def judge_python(program: str, code: int, lines: Sequence[str], last: str, load: str) -> Finding:
    """Judge by what a Python prints about itself. Pure.

    Args:
        program: Its path.
        code: Its exit code.
        lines: Its path, its version, and the version of its TensorFlow if it has one.
        last: Its last line, if it failed.
        load: What to do for another Python.
    """
    if code or len(lines) < 2:
        return Finding(Level.WARNING, "python", f"{program} does not run: {last}", load)
    if len(lines) < 3:
        hint = f"pip install 'gridtf[cuda]', or {load}"
        return Finding(Level.WARNING, "python.tensorflow", f"{program} (Python {lines[1]}) has no TensorFlow", hint)
    return Finding(Level.OK, "python", f"{program} is Python {lines[1]} with TensorFlow {lines[2]}")


def shell(site: Site, environ: Mapping[str, str]) -> Items:
    """Examine what a job's script finds of the user's shell: environments, ``module``, ``conda``.

    Args:
        site: What is set, and the scheduler.
        environ: The environment.
    """
    inherits = site.scheduler is None or site.scheduler.inherits_environment
    program = shutil.which("python", path=environ.get("PATH"))
    if not inherits:
        yield from environment(environ, site.given.spec, site.scheduler.title if site.scheduler else "", program)
    given = dict(environ) if inherits else {name: environ[name] for name in ("HOME", "USER") if name in environ}
    given.setdefault("PATH", os.defpath)
    initial = _first_file(_MODULES, environ)
    known = batch.run_command(["bash", "-c", "type -t module"], limit=_COMMAND_PATIENCE, environ=given).code == 0
    yield from modules(known, initial, environ, site.given.spec)


def _first_file(paths: Iterable[str], environ: Mapping[str, str]) -> str:
    for text in paths:
        with contextlib.suppress(ValueError):
            path = config.expand(text, environ)
            if os.path.isfile(path):  # noqa: PTH113 - not Path.is_file, which raises for a folder that cannot be read
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
    written = any("module" in line or "lmod" in line for lines in spec.setup for line in lines.split("\n"))
    first = [] if known else [source]
    if known or (initial and written):
        yield Finding(Level.OK, check, "set-up lines can load modules: `module load …`")
    elif initial and has:
        what = "the script of a job does not know the command module, which this shell has"
        yield Finding(Level.WARNING, check, what, f"write setup = {toml([source, 'module load …'])}")
    elif initial:
        yield Finding(Level.OK, check, f"set-up lines can load modules after `{source}`")
    else:
        yield Finding(Level.OK, check, "this host has no environment modules")
    if known or initial:
        yield Setting("setup", [*first, "module load cuda"], "environment modules", example=True)
    if lines := activation(environ):
        yield Setting("setup", lines, "the Python environment of this shell", example=True)
    else:
        yield Setting("setup", ["source ~/venv/bin/activate"], "a Python environment of your own", example=True)
