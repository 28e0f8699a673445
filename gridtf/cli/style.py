"""Colours of states and headings, where stdout shows colours: few, and readable on dark and on light screens."""

from __future__ import annotations

from gridtf.cli import output
from gridtf.states import style_of

_CODES = {"good": "32", "warn": "35", "bad": "31"}  # ECMA-48: SGR; no yellow, which is pale on white


def heading(text: str) -> str:
    """Show a heading in bold type."""
    return _shown(text, "1")


def state(text: str, name: str = "") -> str:
    """Show a state in its colour.

    Args:
        text: The text.
        name: The state; empty: the text is its name.
    """
    return style(text, style_of(name or text))


def style(text: str, name: str) -> str:
    """Show text in the colour of a style: good, warn or bad."""
    return _shown(text, _CODES[name])


def _shown(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[m" if text and output.has_colours() else text
