"""What stands round the programs of a job's tasks: any of these, with one implementation each, of bootstrap/agent/api.

==========  ======================================================================
containers  what runs a program in a container: tasks, and the check of their host
logcap      what writes the logs of tasks, lest they become too large
==========  ======================================================================
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridtf.jobspec.spec import JobSpec


def hides_host(spec: JobSpec) -> bool:
    """Whether tasks see other programs than those of their host."""
    return spec.contained


def python(spec: JobSpec) -> str:
    """The Python of the tasks, unless their command is another; empty: gridtf's own."""
    return spec.python or ("python3" if spec.contained else "python" if spec.setup else "")


def modules(spec: JobSpec) -> list[ModuleType]:
    """Import those that a job wants, the innermost first: each has a class Wrapper."""
    wanted = {"containers": spec.contained, "logcap": spec.log_bytes}
    return [import_module(f"gridtf.wrappers.{name}") for name, wants in wanted.items() if wants]
