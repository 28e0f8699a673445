"""The contract between gridtf and a task: the environment variables of a task, and what they mean."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gridtf.errors import GridtfError
from gridtf.jobspec.tasktypes import DATA_WORKER, DISPATCHER, LEADERS
from gridtf.run import recordtypes
from gridtf.run.rundir import RunDir, read_record, write_record
from gridtf.values import Value

RUN_DIR = "GRIDTF_RUN_DIR"
JOB_ID = "GRIDTF_JOB_ID"
JOB_NAME = "GRIDTF_JOB_NAME"
ATTEMPT = "GRIDTF_ATTEMPT"
TASK_TYPE = "GRIDTF_TASK_TYPE"
TASK_INDEX = "GRIDTF_TASK_INDEX"
RENDEZVOUS = "GRIDTF_RENDEZVOUS"
NONCE = "GRIDTF_NONCE"
LOCAL_DIR = "GRIDTF_LOCAL_DIR"
STAGED = "GRIDTF_STAGED"
EVENT = "GRIDTF_EVENT"
OUTPUT_DIR = "OUTPUT_DIR"
TF_CONFIG = "TF_CONFIG"
REUSE_PORT = "TF_GRPC_REUSE_PORT"
GPUS = "CUDA_VISIBLE_DEVICES"
PARAMS = "GRIDTF_PARAMS"

# what to do where a job averages nothing: for its log, and its verdict
TO_AVERAGE = (
    "fit needs callbacks=[group.callback()]; a loop of your own calls group.attach(model), and group.step() each time"
)

DATA_TYPES = (DISPATCHER, DATA_WORKER)  # served by the tf.data service

NOTICE = "checkpoint"  # the file in LOCAL_DIR by which an agent requests a checkpoint of the tasks of its host


def progress_name(task_type: str, index: int | str) -> str:
    """The file in LOCAL_DIR to which a task writes its progress."""
    return f"progress-{task_type}-{index}.json"


def checkpoints_name(task_type: str, index: int | str) -> str:
    """The file in LOCAL_DIR in which gridtf.training notes the folder of a task's checkpoints."""
    return f"checkpoints-{task_type}-{index}.json"


def exception_name(task_type: str, index: int | str) -> str:
    """The file in LOCAL_DIR in which the hook notes the exception that ends a task's program."""
    return f"exception-{task_type}-{index}.json"


def stacks_name(task_type: str, index: int | str) -> str:
    """The file in LOCAL_DIR to which the hook has the stacks of a task's Python processes written on request."""
    return f"stacks-{task_type}-{index}.txt"


class Task(Value):
    """This process's place in the job.

    Attributes:
        type: Task type, as in TF_CONFIG.
        index: Index within the type, as in TF_CONFIG.
        cluster: Task type -> ``host:port`` strings, in index order.
        job_id: The scheduler's id of the job; empty when not known.
        job_name: The job's name; empty when not known.
        attempt: Number of this start of all tasks, counted from 1.
        run_dir: The run directory.
        output_dir: The folder that all tasks share, for checkpoints and exports.
        gpus: The task's GPUs: indices or UUIDs, as in CUDA_VISIBLE_DEVICES.
        rank: Rank among the tasks that train; None for other tasks.
        world_size: Number of tasks that train; None for other tasks.
        outside: Like ``cluster``, for tasks that are not members of it: the evaluator, data workers, services, clients,
            and types with ``in_cluster = false``.
        params: The job's parameters, name -> number, text, True or False; empty in a job without.
    """

    type: str
    index: int
    cluster: Mapping[str, tuple[str, ...]]
    job_id: str
    job_name: str
    attempt: int
    run_dir: Path
    output_dir: Path
    gpus: tuple[str, ...]
    rank: int | None
    world_size: int | None
    outside: Mapping[str, tuple[str, ...]] = {}
    params: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Such as ``worker:0``."""
        return f"{self.type}:{self.index}"

    @property
    def leader(self) -> str:
        """The name of the job's leader: ``chief:0`` (``master:0``), or ``worker:0`` in a job without chief."""
        chief = (name for name in LEADERS if self.cluster.get(name) or self.outside.get(name))
        return f"{next(chief, 'worker')}:0"

    @property
    def is_chief(self) -> bool:
        """Whether this task is the leader: the chief (master), else worker 0, else the first client."""
        if self.type == "worker" or self.type in LEADERS:
            return self.name == self.leader
        return self.rank == 0

    @property
    def address(self) -> str:
        """``host:port`` of this task."""
        return (self.cluster.get(self.type) or self.outside[self.type])[self.index]

    @property
    def dispatcher(self) -> str:
        """``host:port`` of the dispatcher of the data workers; empty in a job without them."""
        return next(iter(self.outside.get(DISPATCHER, ())), "")

    @property
    def data_dir(self) -> Path:
        """The folder of the dispatcher's journal, in the run directory."""
        return RunDir(self.run_dir).attempt(self.attempt).data

    def mark_distributed(self) -> None:
        """Note that a dataset was given to the data workers, for the verdict.

        Raises:
            OSError: The note cannot be made.
        """
        RunDir(self.run_dir).attempt(self.attempt).distributed.touch()


def task(environ: Mapping[str, str] | None = None) -> Task:
    """Read this process's place in the job from its environment and the rendezvous file.

    Args:
        environ: The task's environment; None: this process's.

    Raises:
        GridtfError: Outside a gridtf task, or when the rendezvous file belongs to another attempt.
    """
    env = os.environ if environ is None else environ
    try:
        task_type, index = env[TASK_TYPE], _number(TASK_INDEX, env)
        rendezvous, nonce = Path(env[RENDEZVOUS]), env[NONCE]
        run_dir, attempt = Path(env[RUN_DIR]), _number(ATTEMPT, env)
    except KeyError as error:
        raise GridtfError(
            "this process is not a gridtf task",
            why=f"{error.args[0]} is not set",
            hint="start it with `gridtf submit … -- command`, or call gridtf_run or gridtf_join in a job script",
        ) from None
    record = read_record(rendezvous, recordtypes.Contract, nonce=nonce, own=True)
    if record is None:
        what = f"{rendezvous} is not the rendezvous file of this attempt"
        raise GridtfError(what, hint="was the run directory moved?")
    return Task(
        type=task_type,
        index=index,
        cluster={name: tuple(members) for name, members in record["cluster"].items()},
        job_id=env.get(JOB_ID, ""),
        job_name=env.get(JOB_NAME, ""),
        attempt=attempt,
        run_dir=run_dir,
        output_dir=Path(env.get(OUTPUT_DIR) or run_dir / "output"),
        gpus=tuple(item for item in env.get(GPUS, "").split(",") if item),
        rank=_number("RANK", env) if env.get("RANK") else None,
        world_size=_number("WORLD_SIZE", env) if env.get("WORLD_SIZE") else None,
        outside={name: tuple(members) for name, members in record.get("outside", {}).items()},
        params=_params(env),
    )


def own_task() -> Task | None:
    """This process's task; None outside of gridtf, where the same program trains alone.

    Raises:
        GridtfError: As task() does, inside a task.
    """
    return task() if TASK_TYPE in os.environ else None


def leads() -> bool:
    """Whether this process writes the results: the leader of a job, and a program outside of gridtf."""
    own = own_task()
    return own is None or own.is_chief


def output_dir() -> Path:
    """The folder for results: OUTPUT_DIR, which all tasks share; ``output`` in the working folder outside of gridtf."""
    return Path(os.environ.get(OUTPUT_DIR) or "output").absolute()


def note_checkpoints(folder: Path) -> None:
    """Tell the agent of this task's host to which folder it writes its checkpoints; nothing outside of gridtf."""
    if notes := os.environ.get(LOCAL_DIR):
        own = task()
        with contextlib.suppress(GridtfError):  # a full disk must not end a training
            record = {"folder": os.path.realpath(folder)}
            write_record(Path(notes, checkpoints_name(own.type, own.index)), record, indent=None)


_signals: list[int] = []  # those that have requested a checkpoint of this process
_catches: list[bool] = []  # whether this process catches SIGUSR1 for that; empty until it is known


def checkpoint_requested() -> bool:
    """Whether this job was asked to save a checkpoint and to end: a microsecond, so ask after every step.

    The request is SIGUSR1, to the job script (``scancel --batch --signal=USR1``, Slurm's ``--signal=B:USR1@300``, Grid
    Engine's ``-notify`` and, for a job on one host, ``s_rt``) or to an agent (``scancel --signal=USR1``). All hosts
    learn of it within seconds, but not at the same moment: tasks that work together have to agree on the step at which
    they save, as ``gridtf.training.checkpoint`` does. A program that has saved exits with 42: saved, to be continued.

    The first call also makes the main thread catch SIGUSR1, which would end the program, unless it has a handler.

    Returns:
        True from the request on; outside a gridtf task, only a signal makes it True.
    """
    if not _catches:
        _catches.append(_catch_requests())
    if _signals:
        return True
    folder = os.environ.get(LOCAL_DIR)
    return folder is not None and os.path.exists(f"{folder}/{NOTICE}")  # noqa: PTH110 - a Path takes ten times as long


def _catch_requests() -> bool:
    try:
        if signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN):
            return False
        signal.signal(signal.SIGUSR1, lambda number, _: _signals.append(number))
        signal.siginterrupt(signal.SIGUSR1, False)
    except ValueError:  # not in the main thread
        return False
    return True


def _params(env: Mapping[str, str]) -> dict[str, Any]:
    text = env.get(PARAMS) or "{}"
    try:
        if isinstance(found := json.loads(text), dict):
            return found
    except ValueError:
        pass
    raise GridtfError(f"{PARAMS}={text} is not a JSON object", hint="was it changed in this task?")


def _number(name: str, env: Mapping[str, str]) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise GridtfError(f"{name}={env[name]} is not a number", hint="was it changed in this task?") from None
