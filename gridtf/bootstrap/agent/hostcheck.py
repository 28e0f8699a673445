"""What agents of 0.1.0 that an upgrade in place has overtaken ask for in further attempts. To go after 0.2.0."""

from gridtf.features.hostcheck.agent import _THREADS as THREADS
from gridtf.features.hostcheck.agent import PROGRAM

__all__ = ["PROGRAM", "THREADS", "HostCheck"]


class HostCheck:
    """The check of this host, for which no launcher asks then."""

    def __init__(self, *_: object) -> None:
        pass

    def look(self) -> None:
        """Nothing is due."""
