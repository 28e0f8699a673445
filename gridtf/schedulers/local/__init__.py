"""The embedded scheduler: this machine. The same script as elsewhere, in the background, with GPUs claimed by locks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gridtf.schedulers.api import Scheduler

if TYPE_CHECKING:
    from gridtf.schedulers.local.injob import LocalInJob
    from gridtf.schedulers.local.login import LocalLogin


class LocalScheduler(Scheduler):
    """Jobs on this machine.

    A job's id is ``PID.HOST`` of the job runner that runs its script (bootstrap/agent/node.py), or of the launcher of a
    job that was not submitted.
    """

    name = "local"
    title = "the local scheduler"

    @cached_property
    def login(self) -> LocalLogin:
        from gridtf.schedulers.local.login import LocalLogin

        return LocalLogin(self)

    @cached_property
    def injob(self) -> LocalInJob:
        from gridtf.schedulers.local.injob import LocalInJob

        return LocalInJob(self)

    def is_available(self, environ: Mapping[str, str]) -> bool:
        return True

    def is_current(self, environ: Mapping[str, str]) -> bool:
        return True


scheduler = LocalScheduler()
