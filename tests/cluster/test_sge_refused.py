"""Requests that a real Grid Engine cell cannot run are refused before submission, with what it offers instead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import admin
from tests.support.clusterjobs import gridtf, refused


@contextmanager
def without(bed: Bed, remove: str, add: str) -> Iterator[None]:
    """Remove login from the administrative or the submit hosts for a while."""
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
                "suitable PEs: rr, rrj",
            ],
        ),
        (
            ["--workers", "8"],
            [
                "8 slots need a parallel environment",
                "name one with --pe; possibly suitable: rr, rrj, rrs, fill, fillj, ",
            ],
        ),
        (["--workers", "8", "--pe", "rrr"], ["PE `rrr` does not exist", "did you mean rr?", "suitable PEs: rr, "]),
        (["--workers", "8", "--pe", "loos"], ["did you mean loose? PE `loose` does not let", "suitable PEs: rr, "]),
        (["--workers", "2", "--pe", "nosuch"], ["PE `nosuch` does not exist", "suitable PEs: rr, "]),
        (["--workers", "12", "--pe", "rr", "-w", "n1,n2"], ["12 slots on hosts (n1|n2) requested, PE `rr` offers 8"]),
        (["--workers", "3", "--pe", "two"], ["2 slots per host", "3 is not a multiple", "suitable PEs: "]),
        (["--nodes", "2", "--tasks-per-node", "4", "--pe", "two"], ["8 slots are 4 hosts, not 2"]),
        (["--nodes", "2", "--tasks-per-node", "1", "--pe", "smp"], ["on one host only", "$pe_slots", "suitable PEs: "]),
        (["--workers", "8", "--pe", "smp"], ["8 slots on one host requested", "suitable PEs: rr"]),
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
        (["--workers", "16", "--gpus-per-task", "1", "--pe", "rr"], ["PE `rr` offers 8", "`qhost -F gpu` shows"]),
        # which ran as 6 workers on 3 hosts
        (["--nodes", "2", "--gpus-per-node", "3", "--pe", "rr"], ["3 GPUs per host requested, no host has more"]),
        # qsub -w v refuses it for its memory, whatever the GPUs
        (["--workers", "2", "--gpus-per-task", "3", "--pe", "rr", "--mem-per-task", "8M"], ["no host has more than 2"]),
        (["--gpus-per-task", "1", "--gpu-resource", "ngpus"], ["no resource `ngpus`", "--gpu-resource", "gpu"]),
        (["--native=-bogus"], ["--native", "-bogus"]),
    ],
    ids=lambda value: "".join(value[::2]) if value[0].startswith("--") else "",
)
def test_request_that_the_cell_cannot_run_is_refused(sge: Bed, words: list[str], pieces: list[str]) -> None:
    message = refused(sge, *words)
    assert all(piece in message for piece in pieces), message


def test_unsuitable_parallel_environments_are_not_suggested(sge: Bed) -> None:
    message = refused(sge, "--workers", "8", "--pe", "loose")
    offered = message.rpartition("suitable PEs: ")[2].strip().split(", ")
    assert "rr" in offered
    assert not {"loose", "idle", "smp", "one"} & set(offered)
    for words in (["--pe", "loose"], ["--pe", "nosuch"], []):  # fill would give it one host
        message = refused(sge, "--nodes", "4", "--tasks-per-node", "1", *words)
        offered = message.partition("suitable")[2].partition(": ")[2].partition(";")[0].strip().split(", ")
        assert {"one", "rr"} & set(offered)
        assert not {"fill", "fillj", "smp"} & set(offered)


def test_doctor_suggests_parallel_environments_for_several_hosts(sge: Bed) -> None:
    told = gridtf(sge, "doctor", "--conformance", "--scheduler", "sge", "--pe", "nosuch", check=False)
    assert "there is no PE 'nosuch'" in told.stdout + told.stderr
    assert "suitable: rr, rrj, rrs\n" in told.stdout + told.stderr


def test_refusals_without_qconf(sge: Bed) -> None:
    with without(sge, "-dh", "-ah"):
        assert "PE `rx` does not exist" in refused(sge, "--workers", "8", "--pe", "rx")
        assert "17 slots requested, PE `rr` offers 16" in refused(sge, "--workers", "17", "--pe", "rr")
        assert "queue `nosuch.q` does not exist" in refused(sge, "--partition", "nosuch.q")


def test_host_that_is_no_submit_host(sge: Bed) -> None:
    with without(sge, "-ds", "-as"):
        message = refused(sge, "--workers", "1")
    assert 'jobs cannot be submitted from this host: denied: host "login" is not a submit host' in message
    assert "submit from one of: ctl" in message


def test_unreachable_qmaster(sge: Bed) -> None:
    message = refused(sge, "--workers", "1", env={"SGE_QMASTER_PORT": "6440"})  # nothing listens there
    assert "Grid Engine's qmaster on ctl does not answer" in message
    assert "try again later" in message
