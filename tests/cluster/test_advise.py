"""Advice from jobs of real schedulers: a job with the advised lines fits, and is told that it is about right."""

from __future__ import annotations

from gridtf.jobspec.units import parse_memory
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterfaults import no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf

MIB = 500
SEVERAL = {"slurm": ("--nodes", "2", "--tasks-per-node", "1"), "sge": ("--slots", "2")}
PROGRAM = f"import time; held = bytearray(b'x') * ({MIB} << 20); time.sleep(10)"
ENV = ("--env", "PATH", "--env", f"PYTHONPATH={CHECKOUT}", "--sample-interval", "1", "--name", "holds")


def advised(bed: Bed, shape: tuple[str, ...], memory: tuple[str, ...]) -> None:
    """Run a job, and one that its advice describes."""
    rest = (*shape, *ENV, "--", "python", "-c", PROGRAM)
    first = ClusterJob(bed, *bed.options, *memory, "--time", "40", *rest)
    first.gridtf("wait", timeout=240)
    lines = gridtf(bed, "advise", first.id).stdout
    (line,) = (line for line in lines.splitlines() if line.startswith("mem_per_task = "))
    mib = parse_memory(line.split('"')[1])
    assert MIB * 1.25 <= mib <= MIB * 1.25 + 512, lines
    file = bed.home() / f"advice-{first.id}.toml"
    file.write_text(lines)
    second = ClusterJob(bed, str(SHARED / file.relative_to(bed.shared)), *bed.options, *rest)
    second.gridtf("wait", timeout=240)  # it has completed
    again = gridtf(bed, "advise", second.id).stdout
    assert f"mem_per_task ({mib}M)" in again, again  # it is about right now
    assert not [line for line in again.splitlines() if line.startswith("mem")]
    no_process_left(bed)


@on_every_scheduler
def test_job_with_the_advised_lines(bed: Bed) -> None:
    advised(bed, SEVERAL[bed.kind], ())


def test_job_fits_into_the_advised_memory_where_it_is_limited(constrained_slurm: Bed) -> None:
    advised(constrained_slurm, SEVERAL["slurm"], ("--mem-per-task", "2G"))
