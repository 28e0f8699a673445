"""The one table of task types, and of the kinds that a job's own types have. A new one is one row here."""

from __future__ import annotations

from gridtf.values import Value


class TaskType(Value):
    """A task type and how gridtf treats its tasks.

    Attributes:
        name: TensorFlow's name for it, as in TF_CONFIG; for a kind, the word in ``kind = "service"``.
        takes_gpu: Its tasks take GPUs (or slots, without GPUs); those of the other types need none and run on any host.
        in_cluster: Its tasks are members of the cluster in TF_CONFIG unless the job leaves them out. An evaluator never
            is: the other tasks would wait for it.
        trains: The job succeeds when all tasks of these types have exited with 0.
        critical: A failure of one of its tasks before that ends the job.
        lingers: Its tasks may run on for a while after the training has ended.
        limit: The maximum number of tasks per job; None: any number.
        served: Whether gridtf runs a server in its tasks instead of a command: NEVER, ON_REQUEST or ALWAYS.
        restarts: How many times a served task of this type that was killed is restarted on its port.
        alone: Whether a task outside the cluster is missing in its own TF_CONFIG as well. TensorFlow looks for a task
            in the cluster of its TF_CONFIG, and connects to all that is there.
    """

    name: str
    takes_gpu: bool
    in_cluster: bool
    trains: bool
    critical: bool
    lingers: bool
    limit: int | None
    served: str
    restarts: int = 0
    alone: bool = False


NEVER, ON_REQUEST, ALWAYS = "never", "on request", "always"
ON_FAILURE = RESTART, ATTEMPT, END = "restart", "attempt", "end"  # what a failed task may lead to
MOST_IN_PLACE = 5  # restarts of one task while the others go on

# columns: name, takes_gpu, in_cluster, trains, critical, lingers, limit, served, restarts, alone

# In rank order: the leader first, then workers; types that do not train come last.
TASK_TYPES: dict[str, TaskType] = {
    row.name: row
    for row in (
        TaskType("chief", True, True, True, True, False, 1, NEVER),
        TaskType("master", True, True, True, True, False, 1, NEVER),  # TensorFlow 1's spelling of chief
        # ParameterServerStrategy goes on with the other workers until one is back
        TaskType("worker", True, True, True, True, False, None, ON_REQUEST, MOST_IN_PLACE),
        TaskType("ps", False, True, False, True, False, None, ON_REQUEST),  # a new one would lack the variables
        TaskType("evaluator", False, False, False, False, True, 1, NEVER),
        # tf.data.experimental.service: the dispatcher keeps its state in a file
        TaskType("data_dispatcher", False, False, False, True, False, 1, ALWAYS, MOST_IN_PLACE, True),
        TaskType("data_worker", False, False, False, True, False, None, ALWAYS, MOST_IN_PLACE, True),
    )
}

# What a type of the job's own can be: ``[tasks.tensorboard] kind = "service"``.
KINDS: dict[str, TaskType] = {
    row.name: row
    for row in (
        TaskType("service", False, False, False, False, False, None, NEVER, 0, True),  # runs beside the training
        TaskType("member", False, True, False, True, False, None, ON_REQUEST),  # in the cluster, as a ps is
        TaskType("client", False, False, True, True, False, None, NEVER, 0, True),  # trains, in no cluster
    )
}

LEADERS = ("chief", "master")
DISPATCHER, DATA_WORKER = "data_dispatcher", "data_worker"
SERVICE, CLIENT = "service", "client"  # of KINDS


def properties(task_type: str, kind: str = "") -> TaskType:
    """The row of a task type.

    Args:
        task_type: Its name.
        kind: Its kind, for a type of the job's own; empty for one of TASK_TYPES.
    """
    return KINDS[kind] if kind else TASK_TYPES[task_type]
