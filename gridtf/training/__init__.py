"""Inside a task, with TensorFlow: the ways to train, checkpoints, export, servers and sessions, cluster resolver.

No other package of gridtf imports TensorFlow, and this one only when one of its names is used. No module is named like
one of these names: once it is imported, the name would be the module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_HOME = {
    "ClusterResolver": "gridtf.training.resolver",
    "Context": "gridtf.training.context",
    "averaging": "gridtf.training.group",
    "checkpoint": "gridtf.training.checkpoints",
    "export": "gridtf.training.exports",
    "export_session": "gridtf.training.exports",
    "progress_callback": "gridtf.training.kerascallback",
    "serve": "gridtf.training.servers",
    "server": "gridtf.training.servers",
    "session": "gridtf.training.sessions",
    "summary_writer": "gridtf.training.summaries",
}

_MODULES = ("data",)

if TYPE_CHECKING:
    from gridtf.training import data
    from gridtf.training.checkpoints import checkpoint
    from gridtf.training.context import Context
    from gridtf.training.exports import export, export_session
    from gridtf.training.group import averaging
    from gridtf.training.kerascallback import progress_callback
    from gridtf.training.resolver import ClusterResolver
    from gridtf.training.servers import serve, server
    from gridtf.training.sessions import session
    from gridtf.training.summaries import summary_writer

__all__ = [
    "ClusterResolver",
    "Context",
    "averaging",
    "checkpoint",
    "data",
    "export",
    "export_session",
    "progress_callback",
    "serve",
    "server",
    "session",
    "summary_writer",
]


def __getattr__(name: str) -> object:
    if name not in (*_HOME, *_MODULES):
        raise AttributeError(f"module 'gridtf.training' has no attribute {name!r}")
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"gridtf.training.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
