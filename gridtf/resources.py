"""Paths of the shipped templates and the bootstrap script, in the installed package or in the checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

COMMON = "job.sh.j2"  # the template of all built-in schedulers


def _find(name: str) -> Path:
    shipped = _PACKAGE / name
    return shipped if shipped.exists() else _PACKAGE.parent / name


def templates() -> Path:
    """The folder of the shipped templates."""
    return _find("templates")


def bootstrap_script() -> Path:
    """The shell script that job scripts source, gridtf-bootstrap.sh."""
    return _find("scripts/gridtf-bootstrap.sh")
