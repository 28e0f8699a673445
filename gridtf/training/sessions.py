"""``training.session``: the MonitoredTrainingSession of a TensorFlow 1 program, whose tasks begin and end together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import tensorflow as tf

from gridtf import contract
from gridtf.errors import UsageError
from gridtf.states import SAVED_CODE
from gridtf.training.servers import device_filters, own_server, session_config

v1 = tf.compat.v1
# Seconds between two looks of a worker whether the chief has initialized the variables; 30 by default.
_INITIALIZED_PAUSE = 0.3
_GRACE = 1  # seconds that threads get to end with the session; 120 by default
_numbers = count()


def session(
    filters: str = "async",
    *,
    checkpoint_dir: str | Path = "checkpoints",
    scaffold: Any = None,
    hooks: Sequence[Any] = (),
    config: Any = None,
    **options: Any,
) -> Any:
    """Open a session for a training loop of TensorFlow 1 with parameter servers, between-graph.

    It is a ``MonitoredTrainingSession`` on this task's server, which is started if it does not run yet, with these
    differences:

    - It sees the devices that this way of training needs; otherwise it would wait for all workers.
    - A worker begins within a second of the chief's initialization, not up to 30 s later. The chief of a
      SyncReplicasOptimizer ends within two seconds, not 120.
    - When the chief's session has ended without an exception, those of the others end after their present step:
      ``should_stop()`` is true, and a step that waits for the chief's tokens leaves the ``with`` block, as
      OutOfRangeError does. The programs go on behind it.
    - When a checkpoint is requested (``gridtf.checkpoint_requested()``), the chief saves after its present step, and
      all tasks exit with 42: saved, to be continued.

    A worker that is killed in an asynchronous training does not disturb the sessions of the others.

    Args:
        filters: ``async``; or ``sync``, with the hook of a SyncReplicasOptimizer in ``hooks``.
        checkpoint_dir: The chief's folder for checkpoints and summaries, relative to OUTPUT_DIR. A program that is
            started again goes on from the newest checkpoint there.
        scaffold: As in MonitoredTrainingSession.
        hooks: As in MonitoredTrainingSession.
        config: A ``ConfigProto``; device filters in it replace those of ``filters``.
        options: Further arguments of MonitoredTrainingSession, such as ``save_checkpoint_secs`` (600 by default).
            ``log_step_count_steps`` is None by default.

    Returns:
        A ``MonitoredSession``, to be used in a ``with`` statement.

    Raises:
        UsageError: For other filters, in a job without parameter servers, and when TensorFlow executes eagerly.
        GridtfError: For a task outside the cluster, and when a strategy has already started a server.
    """
    if tf.executing_eagerly():
        what = "training.session needs a graph, and TensorFlow executes operations at once"
        raise UsageError(
            what, hint="write tf.compat.v1.disable_eager_execution() at the top, or build it in a tf.Graph"
        )
    task = contract.task()
    asked = session_config(device_filters(task, filters), config)
    master = own_server(task, asked).target
    scaffold = scaffold or v1.train.Scaffold()
    folder = task.output_dir / checkpoint_dir
    if task.is_chief:
        return v1.train.MonitoredTrainingSession(
            master=master,
            is_chief=True,
            checkpoint_dir=str(folder),
            scaffold=scaffold,
            hooks=[*hooks, _Chief(next(_numbers), scaffold, folder)],
            config=asked,
            stop_grace_period_secs=_GRACE,
            **{"log_step_count_steps": None, **options},  # a warning whenever another task has made all of the steps
        )
    creator = _WorkerSessions(scaffold, master, asked, options.get("max_wait_secs", 7200))
    return v1.train.MonitoredSession(creator, [*hooks, _Worker(next(_numbers))], _GRACE)


class _WorkerSessions(tf.compat.v1.train.SessionCreator):  # type: ignore[misc]
    """Like WorkerSessionCreator, but looks every _INITIALIZED_PAUSE seconds whether the variables have values."""

    def __init__(self, scaffold: Any, master: str, config: Any, max_wait_secs: int) -> None:
        self._scaffold = scaffold
        self._master = master
        self._config = config
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> Any:
        self._scaffold.finalize()
        manager = v1.train.SessionManager(
            local_init_op=self._scaffold.local_init_op,
            local_init_feed_dict=self._scaffold.local_init_feed_dict,
            ready_op=self._scaffold.ready_op,
            ready_for_local_init_op=self._scaffold.ready_for_local_init_op,
            recovery_wait_secs=_INITIALIZED_PAUSE,
        )
        return manager.wait_for_session(self._master, self._config, self._max_wait_secs)


class _Marks(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """What the chief tells the others: two queues on the first ps, which stay empty. A closed one is a mark."""

    def __init__(self, number: int) -> None:
        self._name = f"gridtf_session_{number}"  # a program may open several, one after the other

    def begin(self) -> None:
        with v1.device("/job:ps/task:0/cpu:0"):
            self._saved, self._ended = (
                tf.queue.FIFOQueue(1, [tf.bool], shared_name=f"{self._name}_{mark}", name=f"{self._name}_{mark}")
                for mark in ("saved", "ended")
            )
            self._make_operations()

    def _make_operations(self) -> None:
        raise NotImplementedError


class _Chief(_Marks):
    """Saves when a checkpoint is requested, and tells the others when its session ends."""

    def __init__(self, number: int, scaffold: Any, folder: Path) -> None:
        super().__init__(number)
        self._scaffold = scaffold
        self._path = str(folder / "model.ckpt")

    def _make_operations(self) -> None:
        self._mark_saved, self._mark_ended = (queue.close(True) for queue in (self._saved, self._ended))
        # In a step, a worker of SyncReplicasOptimizer waits for a token from this queue.
        tokens = [node for node in v1.get_default_graph().get_operations() if node.name == "sync_token_q"]
        with v1.device(None):
            self._release = [tf.raw_ops.QueueCloseV2(handle=node.outputs[0]) for node in tokens]

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if contract.checkpoint_requested():
            session = run_context.session
            saved = self._scaffold.saver.save(session, self._path, global_step=v1.train.get_global_step())
            print(f"saved {saved}, to be continued (exit code {SAVED_CODE})", flush=True)
            session.run(self._mark_saved)
            self.end(session)
            raise SystemExit(SAVED_CODE)

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._coordinator = coord

    def end(self, session: Any) -> None:
        session.run(self._mark_ended)
        session.run(self._release)
        # Now, since it ends threads in the midst of a step: SyncReplicasOptimizer's would wait for more gradients.
        self._coordinator.request_stop()
        session.close()


class _Worker(_Marks):
    """Ends the session of a task when the chief's has ended."""

    def _make_operations(self) -> None:
        self._is_saved, self._is_ended = (queue.is_closed() for queue in (self._saved, self._ended))

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._is_ended)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            self.end(run_context.session)
            run_context.request_stop()

    def end(self, session: Any) -> None:
        if session.run(self._is_saved):
            raise SystemExit(SAVED_CODE)
