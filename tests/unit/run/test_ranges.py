"""Ranges of values that tasks report, whatever those are."""

from __future__ import annotations

import math

from gridtf.report.usage import Usage
from gridtf.run import ranges


def test_what_is_no_finite_number_has_no_range() -> None:
    values = {"loss": 0.5, "step": 3, "far": 10**400, "endless": math.inf, "none": math.nan, "text": "nan"}
    assert ranges.of_values(values) == {"loss": [0.5, 0.5], "step": [3, 3]}


def test_report_shows_no_number_that_is_too_large() -> None:
    usage = Usage()
    usage.report("worker:0", 1, {"loss": 0.5, "far": 10**400}, 1.0)
    assert [*usage.by_step] == ["loss"]
