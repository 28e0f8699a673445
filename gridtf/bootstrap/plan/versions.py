"""The versions of TensorFlow that the tasks' Pythons have: whether they differ, and which share a port. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gridtf.run.rundir import Record
from gridtf.text import some

if TYPE_CHECKING:
    from gridtf.bootstrap.plan.placement import PlacedTask

_SHARES_PORTS = (2, 3)  # the first version that reads TF_GRPC_REUSE_PORT


def releases_port(ports: str, version: str | None) -> bool:
    """Decide whether the agent lets a task's port go just before it starts the task.

    Args:
        ports: As JobSpec.ports.
        version: The version of TensorFlow that the task's Python has; empty: none; None: not known.
    """
    number = re.match(r"(\d+)\.(\d+)", version or "")
    old = number is not None and (int(number[1]), int(number[2])) < _SHARES_PORTS
    return ports == "release" or (ports == "auto" and old)


def differing(tasks: Sequence[PlacedTask], records: Mapping[str, Record]) -> str:
    """Describe how the versions of the tasks in the cluster differ.

    Args:
        tasks: All tasks of the job.
        records: Host -> the record that it has published.

    Returns:
        Such as ``hosts have different versions of TensorFlow: 2.21.0 on n1; none on n2``. Empty when they have the same
        version, or none, or when it is not known.
    """
    hosts: dict[str, dict[str, None]] = {}
    for task in tasks:
        version = records[task.host].get("tensorflow", {}).get(task.name)
        if version is not None and task.in_cluster:
            hosts.setdefault(version, {})[task.host] = None
    if len(hosts) < 2:
        return ""
    parts = [f"{version or 'none'} on {some(list(names))}" for version, names in sorted(hosts.items(), reverse=True)]
    return f"hosts have different versions of TensorFlow: {'; '.join(parts)}"


ONE_VERSION = (
    "TensorFlow supports one version per cluster: use one installation that all hosts see (--setup, --python, a venv "
    "in the home directory)"
)
