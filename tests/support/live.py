"""The live part of the conformance suite, which tests/cluster/test_conformance.py runs on a host of a test bed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gridtf.schedulers.sge import scheduler as sge
from gridtf.schedulers.slurm import scheduler as slurm
from gridtf.testing import LiveConformance


class TestSlurm(LiveConformance):
    scheduler = slurm
    hold = ("--hold",)


class TestGridEngine(LiveConformance):
    scheduler = sge
    values: ClassVar[Mapping[str, Any]] = {"pe": "rr"}
    hold = ("-h",)
