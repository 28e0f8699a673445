"""Datasets that the data workers of a job prepare (``--data-workers``), by TensorFlow's tf.data service."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gridtf import contract
from gridtf.contract import Task
from gridtf.errors import GridtfError, nearest

_service = tf.data.experimental.service
_SHARDING = {"dynamic": _service.ShardingPolicy.DYNAMIC, "off": _service.ShardingPolicy.OFF}
_numbers = itertools.count()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def distribute(dataset: Any, sharding: str = "dynamic") -> Any:
    """Let the job's data workers prepare a dataset, for all tasks that train.

    All tasks must distribute the same datasets in the same order: the first call of one task and the first call of
    another share one stream of elements, and so on. Each element is given to one task. Iterating over the result once
    more starts from the beginning.

    The transformations before ``distribute`` run in the data workers, so they must be TensorFlow's: a Python function
    (``from_generator``, ``py_function``) exists in its own process only. Transformations after it run in this task. A
    data worker makes batches of the elements that it has, so each may have one last, smaller batch, and a shuffle
    shuffles these elements.

    With "dynamic" sharding each element is given out exactly once as long as no data worker and no dispatcher dies. A
    data worker that is killed is restarted, and its elements that were under way may be lost: then each element is
    given out at most once. A dispatcher that is killed is restarted as well, and goes on from its journal; it may lose
    the one element that it was giving each data worker. An element in this sense is one of the dataset's source: where
    that is a list of files, it is a file.

    Args:
        dataset: A ``tf.data.Dataset``.
        sharding: "dynamic": each data worker prepares a part of the elements, the next one as soon as it is done with
            one. "off": each data worker prepares all elements, in its own order; for shuffled datasets that repeat
            endlessly.

    Returns:
        A ``tf.data.Dataset`` of the same elements; ``dataset`` itself outside a job with data workers.

    Raises:
        GridtfError: For another sharding.
    """
    if sharding not in _SHARDING:
        hint = nearest(str(sharding), [*_SHARDING]) or 'write "dynamic" or "off"'
        raise GridtfError(f"sharding={sharding!r} is not known", hint=hint)
    task = contract.own_task()
    number = next(_numbers)
    if task is None or not task.dispatcher:
        if number == 0:
            note = "this process prepares its datasets itself: the job has no data workers (--data-workers N)"
            print(f"gridtf: {note}", file=sys.stderr, flush=True)
        return dataset
    given = dataset.apply(
        _service.distribute(_SHARDING[sharding], f"grpc://{task.dispatcher}", job_name=f"gridtf-{number}-{sharding}")
    )
    with contextlib.suppress(OSError):
        task.mark_distributed()
    if not tf.executing_eagerly():  # in the dataset function of ParameterServerStrategy
        return given
    options = tf.data.Options()  # a strategy must not divide among the tasks what is divided already
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return given.with_options(options)


def start_server(task: Task) -> Any:
    """Start the server of a dispatcher or a data worker, on the port that its agent reserves.

    Args:
        task: This process's task.

    Returns:
        The server.

    Raises:
        GridtfError: When the server cannot be started.
    """
    port = int(task.address.rpartition(":")[2])
    start: Callable[[Any], Any]
    config: Any
    if task.address == task.dispatcher:
        try:
            task.data_dir.mkdir(exist_ok=True)
        except OSError as error:
            what = f"{task.name} cannot make {task.data_dir}: {error.strerror}"
            raise GridtfError(what, hint="the dispatcher keeps its journal there: make room, or permit it") from None
        # with its journal, a dispatcher that is restarted knows what it has given out
        config = _service.DispatcherConfig(port=port, work_dir=str(task.data_dir), fault_tolerant_mode=True)
        start = _service.DispatchServer
    else:
        config = _service.WorkerConfig(dispatcher_address=task.dispatcher, worker_address=task.address, port=port)
        start = _service.WorkerServer
    try:
        return start(config)
    except (tf.errors.OpError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise GridtfError(f"{task.name} cannot serve at {task.address}", why=why) from None
