"""Examines the folders of a job: whether other hosts see them, and whether gridtf can work there. Judging is pure."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gridtf import files
from gridtf.errors import GridtfError, SchedulerError
from gridtf.findings import Finding, Items, Level, Setting, failure, missing
from gridtf.host.mounts import file_system, not_shared, of_one_host, own_mounts
from gridtf.jobspec.config import Configured
from gridtf.jobspec.layers import expand
from gridtf.run.rundir import RUN_ROOT, need_safe
from gridtf.schedulers import commands
from gridtf.text import some

if TYPE_CHECKING:
    from gridtf.schedulers.api import Scheduler

_FEW_BYTES, _FEW_FILES = 1 << 30, 1000
_TRIED = 1 << 20  # bytes that are written to the run root, and removed again
# File systems that other hosts can mount; others lie on a disk of this host. Those in its memory are mounts.MEMORY.
_NETWORK = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|fhgfs|ceph|glusterfs|panfs|pvfs2|wekafs|afs|cifs|smb3|dvs|ocfs2|gfs2|9p|virtiofs|quobyte|"
    r"fuse\.(ceph.*|glusterfs|sshfs|moosefs|mfs|juicefs|quobyte)"
)
# What a host's kernel shows as files.
_OF_THE_KERNEL = re.compile(r"proc|sysfs|cgroup2?|devpts|debugfs|tracefs|securityfs|configfs|bpf|mqueue|efivarfs")
# Where sites let users keep large files, as run_root takes them.
_ROOTS = ("$SCRATCH", "$PSCRATCH", "$WORK", "$WORKDIR", "$PROJECT", "/scratch/$USER", "/work/$USER", "/data/$USER", "~")
_ELSEWHERE = "write run_root = … with a folder on a file system that all hosts share"


def run_root(
    given: Configured, scheduler: Scheduler | None, environ: Mapping[str, str], folder: Path, root: Path
) -> Items:
    """Examine the folder for run directories: whether other hosts see it, and whether gridtf can work there.

    Args:
        given: What files and variables set.
        scheduler: The scheduler that jobs go to; None where there is none to use.
        environ: The environment, for other folders.
        folder: The working folder.
        root: The run root.
    """
    if scheduler and scheduler.name != "local":
        mounts = own_mounts()
        elsewhere, on_network = suggestion(environ, mounts)
        # where symbolic links lead, as from a home folder to the file system that has it
        root, working = Path(os.path.realpath(root)), Path(os.path.realpath(folder / (given.spec.chdir or "")))
        if why := _private(working, mounts):
            better = elsewhere.removesuffix(f"/{RUN_ROOT}")
            hint = f"work in a folder that all hosts share: cd {better or '…'}"
            what = f"jobs begin in {working}, which no other host sees: {why}"
            yield Finding(Level.FAILURE, "chdir.shared", what, hint)
        if not (why and root.is_relative_to(working)):
            yield from shared(root, mounts, elsewhere, on_network=on_network)
        package = Path(os.path.realpath(__file__)).parents[1]
        if why := not_shared(package, mounts):
            hint = "install it into an environment in your home folder, or on another file system that all hosts share"
            yield Finding(Level.FAILURE, "gridtf.shared", f"jobs run gridtf from {package}, but {why}", hint)
    unset = given.spec.run_root is None and given.spec.chdir is None
    by_default = (
        f"run directories go to ./{RUN_ROOT}: cd to another folder, or " if unset else "choose another folder: "
    )
    yield from usable(root, f"{by_default}write run_root = …")
    if scheduler:
        yield from _submittable(given, scheduler, folder)


def shared(root: Path, mounts: str, elsewhere: str, *, on_network: bool) -> Items:
    """Judge whether the other hosts of a job see a folder. Pure.

    Args:
        root: The run root.
        mounts: Content of /proc/self/mounts.
        elsewhere: Another folder, as run_root takes it; empty where none is known.
        on_network: Whether that one is on a network's file system.
    """
    check = "run_root.shared"
    mount, kind = file_system(root, mounts)
    why = _private(root, mounts)
    if _NETWORK.fullmatch(kind) and not why:
        yield Finding(Level.OK, check, f"run directories are made in {root}, on {mount} ({kind})")
        return
    setting = Setting("run_root", elsewhere, f"all hosts must see the run directories, and {root} is on one of them")
    hint = f"write {setting.line}" if elsewhere else _ELSEWHERE
    if why:
        yield Finding(Level.FAILURE, check, f"no other host sees the run directories in {root}: {why}", hint)
        yield from [setting] if elsewhere else []
    elif on_network:
        yield from missing(check, f"{root} lies on a disk ({kind}), which other hosts may not see", setting)
    else:
        hint = "if compute hosts see it under the same path (gridtf doctor --probe), all is well; else " + _ELSEWHERE
        yield Finding(Level.WARNING, check, f"{root} lies on a disk of this host ({kind} on {mount})", hint)


def _private(folder: Path, mounts: str) -> str:
    """Why no other host sees a folder; empty where others may see it. Pure."""
    mount, kind = file_system(folder, mounts)
    if _OF_THE_KERNEL.fullmatch(kind):
        return f"{mount} ({kind}) has no files of users"
    return of_one_host(folder, mounts)


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
            place = Path(expand(text, environ)).expanduser()
            real = Path(os.path.realpath(place))
            kind = file_system(real, mounts)[1]
            if place.is_absolute() and os.access(place, os.W_OK) and not _private(real, mounts):
                found.setdefault(_NETWORK.fullmatch(kind) is not None, f"{text}/{RUN_ROOT}")
    return (found[True], True) if True in found else (found.get(False, ""), False)


def usable(root: Path, choose: str) -> Items:
    """Write, rename and lock files in a run root, or in the folder above it that exists.

    Args:
        root: The run root.
        choose: How to choose another one.
    """
    # os.path's functions raise no error where a folder cannot be read
    place = next(folder for folder in (root, *root.parents) if os.path.lexists(folder))
    if not files.is_folder(place):
        what = f"run directories cannot be made in {place}, which is not a folder"
        yield Finding(Level.FAILURE, "run_root.write", what, choose)
        return
    try:
        need_safe(root)
        folder = Path(tempfile.mkdtemp(prefix=".gridtf-doctor-", dir=place))
    except OSError as error:
        what = f"cannot write in {place}" if place == root else f"cannot make {root}: {place} cannot be written"
        yield Finding(Level.FAILURE, "run_root.write", f"{what}: {error.strerror}", choose)
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
            # only what is over a quota, in indented lines below a heading
            lines = commands.run_command(["quota", "-q"], limit=2.0).out.splitlines()
            if over := [line.strip() for line in lines if line[:1].isspace() and line.strip()]:
                what = f"you are over a quota: {some(over)}"
                yield Finding(Level.WARNING, "run_root.quota", what, "`quota` shows your quotas")


def _submittable(given: Configured, scheduler: Scheduler, folder: Path) -> Items:
    """Prepare a job as submit does, up to the command that submits it."""
    from gridtf.login import submission

    job = given.spec.replace(scheduler=scheduler.name, chdir=given.spec.chdir or str(folder))
    try:
        submission.command(submission.prepare(job, given.sources, given.trusted))
    except GridtfError as error:
        yield failure("job", error)
