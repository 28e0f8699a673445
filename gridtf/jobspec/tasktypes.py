"""The one table of task types. A new task type is one row here."""

from __future__ import annotations

from gridtf.values import Value


class TaskType(Value):
    """A TensorFlow task type and how gridtf treats its tasks.

    Attributes:
        name: TensorFlow's name for it, as in TF_CONFIG.
        takes_gpu: Its tasks take GPUs (or slots, without GPUs); those of the other types need none and run on any host.
        in_cluster: Its tasks are members of the cluster in TF_CONFIG unless the job leaves them out. An evaluator never
            is: the other tasks would wait for it.
        trains: The job succeeds when all tasks of these types have exited with 0.
        critical: A failure of one of its tasks before that ends the job.
        lingers: Its tasks may run on for a while after the training has ended.
        limit: The maximum number of tasks per job; None: any number.
    """

    name: str
    takes_gpu: bool
    in_cluster: bool
    trains: bool
    critical: bool
    lingers: bool
    limit: int | None


# In rank order: the leader first, then workers; types that do not train come last.
TASK_TYPES: dict[str, TaskType] = {
    row.name: row
    for row in (
        # columns: name, takes_gpu, in_cluster, trains, critical, lingers, limit
        TaskType("chief", True, True, True, True, False, 1),
        TaskType("master", True, True, True, True, False, 1),  # TensorFlow 1's spelling of chief
        TaskType("worker", True, True, True, True, False, None),
        TaskType("ps", False, True, False, True, False, None),
        TaskType("evaluator", False, False, False, False, True, 1),
    )
}

LEADERS = ("chief", "master")
