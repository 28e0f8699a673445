"""The one table of task types. A new task type is one row here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskType:
    """What gridtf must know of a TensorFlow task type.

    name: TensorFlow's word for it, as in TF_CONFIG.
    takes_gpu: takes its share of GPUs (or of the slots, without GPUs); the others ride along on any host.
    in_cluster: is a member of the others' cluster, unless the job says otherwise (an evaluator never is: it would make
    them wait for it).
    trains: the job succeeds when all tasks of these types have exited with 0.
    critical: its failure before that ends the job.
    lingers: may finish by itself for a while after the training has ended.
    limit: how many there can be; None: any number.
    """

    name: str
    takes_gpu: bool
    in_cluster: bool
    trains: bool
    critical: bool
    lingers: bool
    limit: int | None


# Order is rank order: the leader first, then workers; what does not train comes last.
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
