"""TensorBoard for the results of a job: a server on this host, or a small job of its own that runs one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from gridtf import wrappers
from gridtf.errors import GridtfError, NotFoundError, UsageError
from gridtf.host import processes, sockets
from gridtf.host.interpreter import ROOT, asked
from gridtf.jobspec import config
from gridtf.jobspec.spec import JobSpec, TaskSpec
from gridtf.login.job import Job
from gridtf.run import recordtypes
from gridtf.run.reading import known
from gridtf.run.rundir import RUN_ROOT, here, is_ours, read_private
from gridtf.schedulers.api import LOOPBACK

_MODULE = ("-m", "tensorboard.main")
_LISTEN_PAUSE = 0.1  # seconds between two looks at whether the server listens
_END_LIMIT = 5.0  # seconds that it has to end
_LONGEST = "8:00:00"  # the walltime of a job without one in the site's or the user's file
# What a job for TensorBoard has from the job whose results it shows.
_SHARED = (
    "partition", "account", "qos", "reservation", "exclude", "options", "setup",
    "container", "container_binds", "container_command", "python",
)  # fmt: skip


def program() -> list[str]:
    """The words that start TensorBoard here: in the Python of gridtf, else the command on PATH.

    Raises:
        NotFoundError: When there is none.
    """
    found = find_spec("tensorboard")
    if found is not None and found.origin is not None:  # a folder of that name has no origin
        return [sys.executable, *_MODULE]
    if (command := shutil.which("tensorboard")) is not None:
        return [str(Path(command).absolute())]
    hint = f"load a module that has it, or install it beside gridtf: {sys.executable} -m pip install tensorboard"
    raise NotFoundError(f"there is no TensorBoard on {os.uname().nodename}", hint=hint)


def serve(program: Sequence[str], folder: Path, port: int | None, tell: Callable[[int], None]) -> None:
    """Run TensorBoard on this host, until this process is interrupted. No process of it is left then.

    Args:
        program: The words that start it.
        folder: The folder with the event files, absolute.
        port: The port of 127.0.0.1 to listen on; None: a free one.
        tell: Called with the port once it listens.

    Raises:
        UsageError: When the port is in use.
        GridtfError: When it ends by itself.
    """
    if port is not None and sockets.listening({port}):
        hint = "leave out --port: a free one is taken"
        raise UsageError(f"port {port} of {os.uname().nodename} is in use", hint=hint)
    port = port or _free_port()
    options = ["--logdir", str(folder), "--host", LOOPBACK, "--port", str(port)]
    argv, environ = asked(program[0], [*program[1:], *options], os.environ, Path())
    with tempfile.TemporaryFile() as said:
        server = subprocess.Popen(
            argv,
            env=environ,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends it
            preexec_fn=partial(processes.die_with_parent, os.getpid(), signal.SIGTERM),
        )
        try:
            while server.poll() is None and not sockets.listening({port}):
                time.sleep(_LISTEN_PAUSE)
            if server.poll() is None:
                tell(port)
            code = server.wait()
            said.seek(0)
            lines = [line for line in said.read().decode(errors="replace").splitlines() if line.strip()]
            raise GridtfError(f"TensorBoard has ended with exit code {code}", why=(lines or [""])[-1].strip())
        finally:
            _end(server)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind((LOOPBACK, 0))
        return int(trial.getsockname()[1])


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server that leads a session, and the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(_END_LIMIT)


def spec_of(job: Job, folder: Path) -> JobSpec:
    """The specification of a job that runs TensorBoard: one CPU and no GPU, of the same scheduler and partition.

    Args:
        job: The job whose results it shows.
        folder: The folder with the event files, absolute.

    Raises:
        NotFoundError: When there is no TensorBoard.
        UsageError: For an invalid value in the site's or the user's file.
    """
    record = read_private(job.run.job, recordtypes.Job)
    site = config.complement(JobSpec(command=("tensorboard",), scheduler=job.scheduler or None), os.environ).spec
    like = JobSpec.from_dict(record["spec"]) if record else site
    python = wrappers.python(like)
    words = [python, *_MODULE] if python else program()
    return JobSpec(
        # a port that gridtf has found to be free on the host, and that no task of this job uses
        command=[*words, "--logdir", str(folder), "--host", LOOPBACK, "--port", "{master_port}"],
        name=f"tensorboard-{job.name}"[:63],
        scheduler=job.scheduler or None,
        tasks={"worker": TaskSpec(count=1)},
        cpus_per_task=1,
        gpus_per_node=0,
        gpus=0,
        time=site.time or _LONGEST,
        native=site.native,
        stall_after="off",
        chdir=str(folder),
        run_root=str(job.run_dir.parent) if is_ours(job.run_dir.parent) else site.run_root or str(here() / RUN_ROOT),
        **{key: getattr(like, key) for key in _SHARED},
    )


def address(job: Job) -> tuple[str, int] | None:
    """Where the TensorBoard of such a job listens: (host, port of 127.0.0.1 there); None before it starts."""
    attempt = job.run.latest()
    if attempt is None:
        return None
    host = next((task.get("host") for task in known(attempt.plan, recordtypes.Outline).get("tasks", ())), None)
    port = known(attempt.rendezvous, recordtypes.Contract).get("master_port")
    return (host, port) if host and port else None


def host_name() -> str:
    """The name of this host for ssh: with its domain, where that is known."""
    name = os.uname().nodename
    full = socket.getfqdn(name)
    return full if full.startswith(f"{name}.") and not full.endswith(".localdomain") else name
