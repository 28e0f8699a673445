"""The names of hosts, with and without their domain. Pure."""

from __future__ import annotations


def short_name(name: str) -> str:
    """A host's name without its domain, in lower case."""
    return name.split(".", 1)[0].lower()


def same_host(one: str, other: str) -> bool:
    """Whether two names mean the same host: they are equal, or one is the other without its domain."""
    one, other = one.lower(), other.lower()
    return one == other or (("." in one) != ("." in other) and short_name(one) == short_name(other))
