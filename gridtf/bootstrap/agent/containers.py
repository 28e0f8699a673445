"""Where agents of 0.1.0 that an upgrade in place has overtaken find containers. To go after 0.2.0."""

from gridtf.wrappers.containers import Entrance, command, environment, find

__all__ = ["Entrance", "command", "environment", "find"]
