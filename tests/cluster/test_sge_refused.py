"""What cannot be on a real Grid Engine cell is said before anything is submitted, with what the cell has instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import refused

pytestmark = pytest.mark.timeout(120)


@contextmanager
def without(bed: Bed, remove: str, add: str) -> Iterator[None]:
    """login is no host of this kind."""
    admin(bed, "qconf", remove, "login")
    try:
        yield
    finally:
        admin(bed, "qconf", add, "login")


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (
            ["--workers", "8", "--pe", "loose"],
            [
                "--pe",
                "does not let gridtf start tasks on other hosts (control_slaves FALSE)",
                "suitable PEs: ",
                "rr",
                "two",
            ],
        ),
        (
            ["--workers", "8"],
            ["8 slots need a parallel environment", "name one with --pe; possibly suitable: fill, fillj, "],
        ),
        (["--workers", "8", "--pe", "rrr"], ["PE `rrr` does not exist", "did you mean", "suitable PEs: fill, "]),
        (["--workers", "3", "--pe", "two"], ["2 slots per host", "3 is not a multiple", "suitable PEs: "]),
        (["--nodes", "2", "--tasks-per-node", "4", "--pe", "two"], ["8 slots are 4 hosts, not 2"]),
        (["--nodes", "2", "--tasks-per-node", "1", "--pe", "smp"], ["on one host only", "$pe_slots", "suitable PEs: "]),
        (["--workers", "8", "--pe", "smp"], ["8 slots on one host requested", "suitable PEs: fill"]),
        (["--workers", "17", "--pe", "rr"], ["17 slots requested, PE `rr` offers 16"]),
        (["--workers", "2", "--pe", "idle"], ["no queue offers PE `idle`", "suitable PEs: "]),
        (
            ["--workers", "2", "--pe", "smp", "--partition", "short.q"],
            ["short.q does not offer PE `smp`", "rr", "all.q"],
        ),
        (["--partition", "nosuch.q"], ["--partition", "queue `nosuch.q` does not exist", "all.q"]),
        (["--partition", "short.q", "--time", "1:00:00"], ["--time", "short.q allows (00:10:00)", "all.q (no limit)"]),
        (["--account", "mi"], ["--account", "project `mi` does not exist", "existing projects: ml"]),
        (["--gpus-per-task", "3"], ["3 GPUs requested, no host has more than 2"]),
        (["--workers", "8", "--gpus-per-task", "2", "--pe", "rr"], ["8 slots with 2 GPUs each", "offers 4"]),
        (["--gpus-per-task", "1", "--gpu-resource", "ngpus"], ["no resource `ngpus`", "--gpu-resource", "gpu"]),
        (["--native=-bogus"], ["--native", "-bogus"]),
    ],
    ids=lambda value: "".join(value[::2]) if value[0].startswith("--") else "",
)
def test_what_the_cell_does_not_have(sge: Bed, words: list[str], pieces: list[str]) -> None:
    said = refused(sge, *words)
    assert all(piece in said for piece in pieces), said


def test_parallel_environments_that_would_not_do_are_not_offered(sge: Bed) -> None:
    said = refused(sge, "--workers", "8", "--pe", "loose")
    offered = said.rpartition("suitable PEs: ")[2].strip().split(", ")
    assert {"rr", "fill", "two"} <= set(offered)
    assert not {"loose", "idle", "smp", "one"} & set(offered)


def test_where_qconf_may_not_be_asked(sge: Bed) -> None:
    with without(sge, "-dh", "-ah"):
        assert "PE `rx` does not exist" in refused(sge, "--workers", "8", "--pe", "rx")
        assert "17 slots requested, PE `rr` offers 16" in refused(sge, "--workers", "17", "--pe", "rr")
        assert "queue `nosuch.q` does not exist" in refused(sge, "--partition", "nosuch.q")


def test_a_host_that_may_not_submit(sge: Bed) -> None:
    with without(sge, "-ds", "-as"):
        said = refused(sge, "--workers", "1")
    assert 'jobs cannot be submitted from this host: denied: host "login" is not a submit host' in said
    assert "submit from one of: ctl" in said


def test_no_qmaster(sge: Bed) -> None:
    said = refused(sge, "--workers", "1", env={"SGE_QMASTER_PORT": "6440"})  # where nobody listens
    assert "Grid Engine's qmaster on ctl does not answer" in said
    assert "try again later" in said
