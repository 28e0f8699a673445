"""Runs a command on a host, as in a login shell there."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import accounts, kernel, processes
from .errors import TestbedError
from .processes import Process

if TYPE_CHECKING:
    import subprocess

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_CHECKOUT = Path(__file__).resolve().parents[2]


def environment(user: str, caller: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """A command's environment: the user's variables, the caller's PATH with the checkout's environments, ``extra``."""
    environ = {
        "PATH": search_path(caller),
        "HOME": accounts.home(user),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "TERM": caller.get("TERM", "dumb"),
        "LANG": caller.get("LANG", "C.UTF-8"),
    }
    return {**environ, **extra}


def search_path(caller: Mapping[str, str]) -> str:
    """PATH with the checkout's virtual environments first, or last if the caller has activated one."""
    path = caller.get("PATH", os.defpath).split(":")
    own = [str(_CHECKOUT / name / "bin") for name in (".venv", ".venv-test")]
    entered = "VIRTUAL_ENV" in caller or any(folder in path for folder in own)
    own = [folder for folder in own if Path(folder).is_dir() and folder not in path]
    return ":".join([*path, *own] if entered else [*own, *path])


def run(process: Process, user: str, command: Sequence[str], environ: Mapping[str, str], cwd: str | None = None) -> int:
    """Run a command on a host. It receives the signals sent to this process, and dies with this process.

    Args:
        process: The first process of the host.
        user: The user's name.
        command: The command.
        environ: Its environment.
        cwd: A folder of the host; None: the caller's folder if the host has it, else the user's home.

    Returns:
        Its exit code; 128 + N when signal N ended it.

    Raises:
        TestbedError: When the host has no power.
    """
    try:
        namespaces = kernel.open_namespaces(process.pid, kernel.NAMESPACES)
    except FileNotFoundError:
        namespaces = {}
    if not namespaces or not processes.alive(process):  # checked while they are open, hence they are its namespaces
        raise TestbedError("the host has just lost its power", code=255)
    awaited = {*_FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    kernel.enter({"pid": namespaces.pop("pid")})
    child = os.fork()
    if child == 0:
        _become(namespaces, user, cwd or _folder(), command, environ, awaited)
    while True:
        info = signal.sigwaitinfo(awaited)
        if info.si_signo != signal.SIGCHLD:
            if info.si_code <= 0:  # sent by a process; the command itself receives a terminal's signals
                os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def command(process: Process, user: str, words: Sequence[str], cwd: str) -> list[str]:
    """The command line by which programs of util-linux do the same, in a tenth of the time of a Python.

    It forwards no signal; its exit code is as of subprocess. The first process of the host must be alive.
    """
    # by their paths: the environment is that of the command, whose PATH may have none of them
    into = ["/usr/bin/nsenter", f"--target={process.pid}", "--net", "--uts", "--ipc", "--pid", "--mount"]
    become = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--pdeathsig=KILL"]
    return [*into, *become, "/usr/bin/env", f"--chdir={cwd}", *words]


def capture(
    process: Process, command: Sequence[str], environ: Mapping[str, str], limit: float = 20
) -> subprocess.CompletedProcess[str]:
    """Run a command on a host as root, for the test bed itself.

    Raises:
        subprocess.TimeoutExpired: After ``limit`` seconds.
    """
    import subprocess

    namespaces = kernel.open_namespaces(process.pid, [name for name in kernel.NAMESPACES if name != "pid"])
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            env=environ,
            preexec_fn=lambda: kernel.enter(namespaces),
        )
    finally:
        for descriptor in namespaces.values():
            os.close(descriptor)


def _become(
    namespaces: dict[str, int],
    user: str,
    where: str | tuple[str, int, int] | None,
    command: Sequence[str],
    environ: Mapping[str, str],
    blocked: set[signal.Signals],
) -> None:
    """In the child: enter the host, become the user, and run the command. Never returns."""
    try:
        kernel.enter(namespaces)
        account = pwd.getpwnam(user)
        os.initgroups(user, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
        kernel.die_with_parent()
        if isinstance(where, str):
            os.chdir(where)
        else:
            _go(where, environ["HOME"])
        # Python ignores the first two, nohup and shells others; a login shell ignores none
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *_FORWARDED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        try:
            os.execvpe(command[0], list(command), dict(environ))  # noqa: S606
        except FileNotFoundError:
            print(f"error: {command[0]}: no such command on this host", file=sys.stderr)
            os._exit(127)
    except BaseException as error:
        print(f"error: {command[0]} cannot be run on this host: {error}", file=sys.stderr)
        os._exit(126)


def _folder() -> tuple[str, int, int] | None:
    """The caller's folder, with its device and inode number."""
    with contextlib.suppress(OSError):
        found = Path.cwd().stat()
        return str(Path.cwd()), found.st_dev, found.st_ino
    return None


def _go(where: tuple[str, int, int] | None, home: str) -> None:
    """Change to the caller's folder if this host has the same one (not just its name), else to the home folder."""
    if where is not None:
        with contextlib.suppress(OSError):
            found = Path(where[0]).stat()
            if (found.st_dev, found.st_ino) == where[1:]:
                os.chdir(where[0])
                return
    os.chdir(home if os.access(home, os.X_OK) else "/")
