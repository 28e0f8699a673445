"""gridtf tensorboard: TensorBoard for the results of a job, and how to reach it from one's own computer."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridtf.cli import output
from gridtf.cli.common import as_ctrl_c, find_job, new_parser
from gridtf.errors import GridtfError, NotFoundError, UsageError
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain

if TYPE_CHECKING:
    from gridtf.login.job import Job

_INTERRUPTED = 130


def parser(**more: Any) -> Parser:
    made = new_parser("tensorboard", "JOB [options]", ("digits", "4711 --in-job"), job=True, **more)
    made.add_argument("--in-job", action="store_true", help="in a job of its own, of one CPU, instead of on this host")
    made.add_argument("--port", metavar="N", type=_port, help="the port on this host (default: a free one)")
    made.add_argument("--logdir", metavar="DIR", help="another folder than the job's output")
    return made


def run(arguments: Namespace) -> int:
    if arguments.in_job and arguments.port:
        raise UsageError("--port chooses a port of this host, and --in-job runs elsewhere", hint="leave out --port")
    job = find_job(arguments)
    folder = _folder(job, arguments.logdir)
    as_ctrl_c()
    try:
        if arguments.in_job:
            return _in_job(job, folder)
        return _here(folder, arguments.port)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _folder(job: Job, given: str | None) -> Path:
    from gridtf.run import registry
    from gridtf.run.rundir import here, listdir

    if given is None:
        registry.need_one_job(job.run, "tensorboard")
    folder = job.output_dir if given is None else here() / given
    if not listdir(folder) and not folder.is_dir():  # a folder that is closed to this user is an error of its own
        raise NotFoundError(f"there is no folder {folder}", hint="--logdir DIR names another one")
    return folder.absolute()


def _here(folder: Path, port: int | None) -> int:
    from gridtf.login import tensorboard

    program, name = tensorboard.program(), tensorboard.host_name()
    output.message("starting TensorBoard")
    tensorboard.serve(program, folder, port, lambda port: _tell(folder, port, _login(name), name))
    return 0


def _in_job(job: Job, folder: Path) -> int:
    """Submit a job that runs TensorBoard, tell how to reach it, and cancel it in the end."""
    from gridtf.login import submission, tensorboard

    board = submission.submit(tensorboard.spec_of(job, folder))
    for note in board.notes:
        output.message(f"gridtf: {plain(note)}")
    output.message(f"TensorBoard runs in job {plain(board.id)}")
    try:
        _follow(board, folder)
    finally:
        last = board.cancel()
        output.message(f"job {plain(board.id)}: {plain(last.state)}")
    return 0


def _follow(board: Job, folder: Path) -> None:
    """Wait for a job that runs TensorBoard, and tell how to reach it. Raises GridtfError when it ends."""
    from gridtf.cli import show
    from gridtf.login import tensorboard

    here, told, printed = tensorboard.host_name(), False, ""
    for view in board.watch():
        if not told and (line := show.progress(view)) != printed and not view.finished:
            output.message(f"{time.strftime('%H:%M:%S')}  {line}")
            printed = line
        at = tensorboard.address(board) if not told and view.tasks and view.tasks[0].started else None
        if at is not None:
            host, port = at
            jump = "" if here.partition(".")[0] == host.partition(".")[0] else host
            _tell(folder, port, f"-J {_login(here)} {_login(jump)}" if jump else _login(here), host)
            told = True
    why = view.reason or view.state
    raise GridtfError(f"the job of TensorBoard has ended: {why}", hint=f"see `gridtf logs {board.id}`")


def _tell(folder: Path, port: int, login: str, host: str) -> None:
    lines = (
        f"TensorBoard shows {folder}",
        f"on your own computer:  ssh -L {port}:127.0.0.1:{port} {login}",
        f"then open              http://127.0.0.1:{port}/",
        f"Every user of {host} can connect to it as well: TensorBoard asks for no password. Ctrl-C ends it.",
    )
    output.result("\n".join(map(plain, lines)))


def _login(host: str) -> str:
    from gridtf.run import registry

    return f"{registry.who()['user']}@{host}"


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ArgumentTypeError(f"{text!r} is not a port: write a number from 1024 to 65535")
    return int(text)
