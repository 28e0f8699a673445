"""A host: a process in namespaces of its own, whose death is the power cut of the host.

It is forked rather than started as a new program, so that seven hosts boot in the time of one.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import kernel, processes
from .errors import TestbedError
from .processes import Process

_ENDED = "ended: "
_daemons: dict[int, str] = {}  # of the host that this process is: pid -> program


@dataclass
class Booting:
    """A host that waits for its link.

    Attributes:
        name: Its name.
        process: Its first process.
        go: Write end of a pipe; a byte starts the host once its link is up.
        report: Read end of a pipe with the host's report: ``ready``, or an error.
    """

    name: str
    process: Process
    go: int
    report: int


def begin(name: str, log: Path, start: Callable[[], None]) -> Booting:
    """Fork a host, which waits for finish(), calls ``start``, reports, and from then on only reaps processes.

    Raises:
        TestbedError: When its namespaces cannot be made.
    """
    go_reader, go = os.pipe()
    report, report_writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    leaving = os.fork()
    if leaving == 0:
        try:
            os.setsid()
            kernel.unshare("net", "uts", "ipc", "pid", "mnt")
            first = os.fork()
            if first == 0:
                _run(name, log, start, go_reader, report_writer)
            os.write(report_writer, f"{first}\n".encode())
            os._exit(0)
        except BaseException as error:
            os.write(report_writer, f"error: {error}".encode())
            os._exit(1)
    os.close(go_reader)
    os.close(report_writer)
    os.waitpid(leaving, 0)
    line = os.read(report, 4096).decode()
    if not line.strip().isdigit():
        raise TestbedError(
            f"host {name} cannot be made",
            why=line.strip(),
            hint="namespaces need root in a container with --privileged",
        )
    return Booting(name, processes.find(int(line)), go, report)


def finish(hosts: list[Booting], limit: float = 180) -> None:
    """Start hosts, all at once, and wait until they are ready.

    Raises:
        TestbedError: With the report of the first host that fails, or after ``limit`` seconds.
    """
    for host in hosts:
        with contextlib.suppress(BrokenPipeError):
            os.write(host.go, b"\n")
        os.close(host.go)
    end = time.monotonic() + limit
    for host in hosts:
        ready = select.select([host.report], [], [], max(0.0, end - time.monotonic()))[0]
        report = os.read(host.report, 65536).decode() if ready else f"it has not started after {limit:.0f} s"
        os.close(host.report)
        if report != "ready":
            raise TestbedError(f"host {host.name} does not start", why=report.strip() or "it died at once")


def _run(name: str, log: Path, start: Callable[[], None], go: int, report: int) -> None:
    """The first process of a host. Never returns."""
    try:
        # handled, not ignored: jobs would inherit the signals that the caller, or nohup, ignores
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _leave_everything(log, keep=(go, report))
        kernel.set_process_name(f"host {name}")
        kernel.set_hostname(name)
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.chdir("/")
        if not os.read(go, 1):
            os._exit(1)  # the caller of begin() has given up
        start()
        os.write(report, b"ready")
    except TestbedError as error:
        os.write(report, "\n".join(error.lines).encode())
        os._exit(1)
    except BaseException as error:
        traceback.print_exc()
        os.write(report, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(go)
    os.close(report)
    while True:
        try:
            child, status = os.wait()
        except ChildProcessError:
            time.sleep(0.2)  # orphans may arrive
            continue
        if child in _daemons:
            name, code = _daemons.pop(child), os.waitstatus_to_exitcode(status)
            if code == 0 and (heir := _child(name)):  # a daemon forks twice on its way to the background
                _daemons[heir] = name
            else:
                print(f"{_ENDED}{name}, exit code {code}", flush=True)


def _leave_everything(log: Path, keep: tuple[int, ...]) -> None:
    """Close all files of the caller: its terminal, pipes whose end a reader waits for, locks."""
    with log.open("wb") as file, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def service(command: list[str], log: str | Path, **options: Any) -> None:
    """Start a daemon as a child of this first process; it stays in the foreground."""
    with Path(log).open("ab") as file:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **options
        )
    _daemons[daemon.pid] = command[0]
    daemon.returncode = 0  # reaped with all other processes, not by this object


def function(name: str, run: Callable[[], None]) -> None:
    """Start a daemon that is a function of this program, as a child of this first process; its output is the host's."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            kernel.set_process_name(name)
            run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _daemons[pid] = name


def daemon(command: list[str], log: str | Path, limit: float = 60, **options: Any) -> None:
    """Start a daemon that goes to the background, where it becomes a child of this first process, which watches it.

    Raises:
        TestbedError: With its output, when it does not start.
        subprocess.TimeoutExpired: When it stays in the foreground.
    """
    name = Path(command[0]).name
    with Path(log).open("ab") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=limit, **options)
    end = time.monotonic() + 5
    # its child becomes a child of this process only when the processes between them have ended, a moment later
    while not (pid := _child(name)) and done.returncode == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if done.returncode != 0 or not pid:
        output = Path(log).read_text(errors="replace").strip()
        raise TestbedError(f"{name} does not start: exit code {done.returncode}", why=output)
    _daemons[pid] = name


def _child(name: str) -> int:
    """A living child of this process by the name of its program; 0 when there is none."""
    children = processes.children(os.getpid())
    return next((pid for pid in children if processes.name(pid) == name[:15] and processes.start_time(pid)), 0)


def ended(log: Path) -> str:
    """The daemon of a host that has ended by itself, and how; empty while there is none. log: of the host."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.removeprefix(_ENDED) for line in lines if line.startswith(_ENDED)), "")
