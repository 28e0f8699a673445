"""gridtf: run distributed TensorFlow on Grid Engine, Slurm or one machine.

Nothing is imported before it is used: ``import gridtf`` costs next to nothing, and only ``gridtf.training``
imports TensorFlow.
"""

__version__ = "0.1.0"

_HOME = {
    "JobSpec": "gridtf.jobspec.spec",
    "TaskSpec": "gridtf.jobspec.spec",
    "GridtfError": "gridtf.errors",
    "Job": "gridtf.login.job",
    "find": "gridtf.login.job",
    "jobs": "gridtf.login.api",
    "load": "gridtf.login.api",
    "render": "gridtf.login.api",
    "submit": "gridtf.login.api",
    "Task": "gridtf.contract",
    "task": "gridtf.contract",
    "checkpoint_requested": "gridtf.contract",
    "progress": "gridtf.reporting",
}

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from gridtf import training
    from gridtf.contract import Task, checkpoint_requested, task
    from gridtf.errors import GridtfError
    from gridtf.jobspec.spec import JobSpec, TaskSpec
    from gridtf.login.api import jobs, load, render, submit
    from gridtf.login.job import Job, find
    from gridtf.reporting import progress
else:  # hidden from type checkers, which would accept any name otherwise

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'gridtf' has no attribute {name!r}")
        from importlib import import_module

        if name == "training":
            return import_module("gridtf.training")
        return getattr(import_module(_HOME[name]), name)


__all__ = [
    "GridtfError",
    "Job",
    "JobSpec",
    "Task",
    "TaskSpec",
    "__version__",
    "checkpoint_requested",
    "find",
    "jobs",
    "load",
    "progress",
    "render",
    "submit",
    "task",
    "training",
]


def __dir__() -> list[str]:
    return sorted(__all__)
