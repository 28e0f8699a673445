"""Inside a task, with TensorFlow: the resolver for strategies, entry functions' context, averaging, served tasks.

No other package of gridtf imports TensorFlow, and this one only when one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_HOME = {
    "ClusterResolver": "gridtf.training.resolver",
    "Context": "gridtf.training.context",
    "averaging": "gridtf.training.group",
    "checkpoint": "gridtf.training.checkpoints",
    "serve": "gridtf.training.server",
}

if TYPE_CHECKING:
    from gridtf.training.checkpoints import checkpoint
    from gridtf.training.context import Context
    from gridtf.training.group import averaging
    from gridtf.training.resolver import ClusterResolver
    from gridtf.training.server import serve

__all__ = [
    "ClusterResolver",
    "Context",
    "averaging",
    "checkpoint",
    "serve",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'gridtf.training' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
