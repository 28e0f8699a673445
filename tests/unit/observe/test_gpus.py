"""What the GPUs of a host do."""

from __future__ import annotations

import pytest

from gridtf.observe.gpus import mean_use

DEVICES = {"0": {"use": 90.0}, "1": {"use": 10.0}, "2": {}}


@pytest.mark.parametrize(("names", "use"), [(["0", "1"], 50.0), (["1", "2"], 10.0), (["2", "7"], None), ([], None)])
def test_use_is_the_mean_of_the_gpus_that_tell_it(names: list[str], use: float | None) -> None:
    assert mean_use(DEVICES, names) == use
