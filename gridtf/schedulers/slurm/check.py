"""What the site would refuse, before anything is submitted."""

from __future__ import annotations

from gridtf.schedulers.base import Plan


def check(plan: Plan) -> tuple[str, ...]:
    """Notes for the user."""
    return ()
