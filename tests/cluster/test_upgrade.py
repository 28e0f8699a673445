"""Jobs of one version start, end and are resumed after the site has gone on to the next. Local: tests/local."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.releases import NEW, OLD, Site, outlive, wheel

_numbers = count()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return [wheel(version, folder) for version in (OLD, NEW)]


@on_every_scheduler
@pytest.mark.parametrize("beside", [True, False], ids=["beside", "in-place"])
def test_jobs_outlive_an_upgrade(bed: Bed, wheels: list[Path], beside: bool) -> None:
    shared = bed.home() / f"upgrade-{next(_numbers)}"
    seen = bed.seen(shared)
    bed.run("login", "mkdir", "-p", f"{seen}/apps", f"{seen}/wheels")
    for built in wheels:
        (shared / "wheels" / built.name).write_bytes(built.read_bytes())
    hold = {"slurm": "--native=--hold", "sge": "--native=-h"}[bed.kind]
    outlive(Site(bed, f"{seen}/apps"), Path(seen, "wheels"), shared, seen, beside=beside, hold=(hold,))
