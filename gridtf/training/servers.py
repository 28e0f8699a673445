"""This task's TensorFlow server, started once, on the port that the agent reserves for it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gridtf import contract
from gridtf.contract import Task
from gridtf.errors import GridtfError, UsageError, nearest

_LISTEN = "0A"  # tcp_states.h, as /proc/net/tcp prints it
_VISIBLE = (contract.GPUS, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
WAYS = ("async", "sync")
_started: list[Any] = []  # the server that gridtf has started in this process


def server(filters: str = "async", config: Any = None) -> Any:
    """Start this task's ``tf.distribute.Server`` for between-graph training with parameter servers.

    Args:
        filters: The way of training, for which the server's configuration gets device filters: ``async`` (the parameter
            servers and this task) or ``sync`` (the leader as well). Without them a session waits for all workers.
        config: A ``ConfigProto`` with further configuration; its own device filters, if it has any, are kept.

    Returns:
        The server. ``training.session`` uses it and its filters. TensorFlow does not pass them on to other sessions::

            v1.Session(server.target, config=server.server_def.default_session_config)

    Raises:
        UsageError: For another way, and in a job without parameter servers.
        GridtfError: As start_server does.
    """
    task = contract.task()
    return start_server(task, session_config(device_filters(task, filters), config))


def own_server(task: Task, config: Any = None) -> Any:
    """The server that gridtf has started in this process; if there is none, it is started, as start_server does.

    Args:
        task: This process's task.
        config: For a new server.
    """
    return _started[0] if _started else start_server(task, config)


def device_filters(task: Task, way: str) -> list[str]:
    """The tasks whose devices a session of a task has to see.

    Args:
        way: One of WAYS.

    Returns:
        Device filters, such as ``/job:ps`` and ``/job:worker/task:1``.

    Raises:
        UsageError: For another way, and in a job without parameter servers.
    """
    if way not in WAYS:
        raise UsageError(f"filters={way!r}: filters are 'async' or 'sync'", hint=nearest(str(way), [*WAYS]))
    if not task.cluster.get("ps"):
        what = f"filters={way!r} are for jobs with parameter servers, and this job has none"
        raise UsageError(what, hint="submit it with --ps 1, or start tf.distribute.Server yourself")
    tasks = [task.leader] if way == "sync" else []
    tasks += [task.name] if task.type != "ps" else []
    return ["/job:ps", *(f"/job:{name.replace(':', '/task:')}" for name in dict.fromkeys(tasks))]


def session_config(filters: Sequence[str], config: Any = None) -> Any:
    """A ``ConfigProto`` with device filters.

    Args:
        filters: The filters, unless ``config`` has some.
        config: Further configuration; it is not changed.
    """
    import tensorflow as tf

    made = tf.compat.v1.ConfigProto()
    if config is not None:
        made.CopyFrom(config)
    if not made.device_filters:
        made.device_filters.extend(filters)
    return made


def start_server(task: Task, config: Any = None) -> Any:
    """Start a ``tf.distribute.Server`` for a task.

    Args:
        task: This process's task.
        config: Its ``ConfigProto``, if any.

    Returns:
        The server.

    Raises:
        GridtfError: For a task outside the cluster, and when this process already has a server: with TF_GRPC_REUSE_PORT
            both would share the port silently, and each would get some of the calls.
    """
    members = task.cluster.get(task.type, ())
    if task.index >= len(members):
        raise GridtfError(f"{task.name} has no server", why="it is not a member of the job's cluster")
    port = int(members[task.index].rpartition(":")[2])
    if listens_on(port):
        raise GridtfError(
            f"{task.name} already has a TensorFlow server, at {members[task.index]}",
            why="a strategy or this program started it in this process",
            hint="use that one, or gridtf's; not both",
        )
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({name: list(addresses) for name, addresses in task.cluster.items()})
    options = {} if config is None else {"config": config}
    _started[:] = [tf.distribute.Server(cluster, job_name=task.type, task_index=task.index, **options)]
    return _started[0]


def serve(task: Task | None = None, modules: Sequence[str] = ()) -> NoReturn:
    """Run the server of a task without user code until a signal ends the process. A ps sees no GPU.

    It is a TensorFlow server, or the dispatcher or a worker of the tf.data service.

    Args:
        task: The task; None: this process's.
        modules: Imported before: those with operations of their own, which a graph may place here.

    Raises:
        GridtfError: When the server cannot be started (see start_server) or ends by itself.
        ImportError: A module cannot be imported, or what it does then has failed.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # may have been inherited as ignored
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # requests for checkpoints concern tasks with user code
    task = task or contract.task()
    if task.type == "ps":
        os.environ.update(dict.fromkeys(_VISIBLE, ""))  # read once, when TensorFlow is imported
    sys.path += [str(Path.cwd())] if modules else []  # where the user's own are
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # such as those of operations for another TensorFlow
            raise ImportError(f"serve_imports: {module} cannot be imported on this host: {error}") from error
    if task.type in contract.DATA_TYPES:
        from gridtf.training import data

        server = data.start_server(task)
    else:
        server = start_server(task)
    print(f"gridtf serves {task.name} at {task.address}", flush=True)
    server.join()
    raise GridtfError(f"the server of {task.name} has ended by itself")


def listens_on(port: int) -> bool:
    """Whether this process listens on a TCP port; False without /proc."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            sockets |= listening_inodes(Path(f"/proc/self/net/{table}").read_text(), port)
    links = {f"socket:[{inode}]" for inode in sockets}
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed since it was listed
            if str(descriptor.readlink()) in links:
                return True
    return False


def listening_inodes(table: str, port: int) -> set[str]:
    """Find the sockets that listen on a port.

    Args:
        table: Text of /proc/net/tcp or tcp6 (proc_pid_net(5)).
        port: The port.

    Returns:
        The inodes of these sockets.

    The table has a heading and one line per socket, with addresses and ports in hexadecimal::

        sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
         0: 00000000:08AE 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 48211 1 …
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return {row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port}
