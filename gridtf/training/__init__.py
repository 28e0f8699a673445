"""Inside a task, with TensorFlow: the resolver for strategies, the context of an entry function, data workers, served
tasks.

No other package of gridtf imports TensorFlow, and this one only when one of its names is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_HOME = {
    "ClusterResolver": "gridtf.training.resolver",
    "Context": "gridtf.training.context",
    "serve": "gridtf.training.server",
}

_MODULES = ("data",)

if TYPE_CHECKING:
    from gridtf.training import data
    from gridtf.training.context import Context
    from gridtf.training.resolver import ClusterResolver
    from gridtf.training.server import serve

__all__ = ["ClusterResolver", "Context", "data", "serve"]


def __getattr__(name: str) -> object:
    if name not in (*_HOME, *_MODULES):
        raise AttributeError(f"module 'gridtf.training' has no attribute {name!r}")
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"gridtf.training.{name}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
