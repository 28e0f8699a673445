"""Keeps `import dataclasses` from loading inspect, ast, dis and tokenize: a sixth of the start of an agent.

It needs them for classes without a docstring alone, and from Python 3.13 on for others, too. Every host pays for them
before its tasks can start. Whoever uses inspect gets the real one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


class Later(ModuleType):
    """Stands for a module until something in it is asked for."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


if sys.version_info < (3, 13):
    sys.modules.setdefault("inspect", Later("inspect"))
