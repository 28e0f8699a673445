"""Several jobs are cancelled at once on real clusters: by how many calls, and what is told of one that is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, ended, finished, started
from tests.support.clusterjobs import GRIDTF, ClusterJob, gridtf
from tests.support.sgebed import BINARIES

PROGRAMS = {"slurm": "/usr/bin/scancel", "sge": f"{BINARIES}/qdel"}
HELD = {"slurm": "--native=--hold", "sge": "--native=-h"}
TITLES = {"slurm": "Slurm", "sge": "Grid Engine"}


def held(bed: Bed, count: int, user: str = "alice") -> list[ClusterJob]:
    words = (*bed.options, HELD[bed.kind], "--nodes", "1", "--tasks-per-node", "1", "--", "true")
    return [ClusterJob(bed, *words, user=user) for _ in range(count)]


class Calls:
    """Notes the calls of scancel or qdel by all users, through a program of the same name that runs the real one.

    Attributes:
        environ: The variables with which commands find that program.
    """

    def __init__(self, bed: Bed) -> None:
        folder = bed.shared / "calls"
        folder.mkdir()
        self._notes = folder / "notes"
        self._notes.touch()
        self._notes.chmod(0o666)
        program = folder / PROGRAMS[bed.kind].rpartition("/")[2]
        program.write_text(
            f'#!/bin/sh\necho "$(id -un) $*" >>{bed.seen(self._notes)}\nexec {PROGRAMS[bed.kind]} "$@"\n'
        )
        program.chmod(0o755)
        seen = bed.seen(folder)
        found_by = {"slurm": {"PATH": f"{seen}:{bed.path}"}, "sge": {"SGE_BINARY_PATH": seen}}[bed.kind]
        self.environ: Mapping[str, str] = {**GRIDTF_ENVIRON, **found_by}

    def take(self) -> list[list[str]]:
        """The user and the ids of each call since the last time."""
        lines = self._notes.read_text().splitlines()
        self._notes.write_text("")
        return [line.replace(" -- ", " ").split() for line in lines]


@contextmanager
def noted(bed: Bed) -> Iterator[Calls]:
    try:
        yield Calls(bed)
    finally:
        bed.run("login", "rm", "-rf", bed.seen(bed.shared / "calls"), user="root")


@on_every_scheduler
def test_several_jobs_are_cancelled_by_one_call_for_each_owner(bed: Bed) -> None:
    runs, waiting, bobs = started(bed, nodes=1, name="runs"), held(bed, 2), held(bed, 2, user="bob")
    jobs = [runs, bobs[0], *waiting, bobs[1]]
    with noted(bed) as calls:
        done = gridtf(bed, "cancel", *(job.seen_as for job in jobs), user="root", env=calls.environ)
        assert sorted(calls.take()) == [
            ["alice", *(job.id for job in (*waiting, runs))],
            ["bob", *(job.id for job in bobs)],
        ]
    assert done.stdout.count(": CANCELLED") == 5
    assert f"for 1 job to end, then what is left is killed: {runs.id}\n" in done.stderr
    ended(runs, "CANCELLED", "cancelled by root on login")
    assert {job.status()["reason"] for job in (*waiting, *bobs)} == {"cancelled by root on login"}


@on_every_scheduler
def test_refused_job_is_told_and_spares_none_of_two_commands_at_once(bed: Bed) -> None:
    """One of alice's records names a job of bob's."""
    first, wrong, second = held(bed, 3)
    (bobs,) = held(bed, 1, user="bob")
    record = json.loads(wrong.run.submitted.read_text())
    wrong.run.submitted.write_text(json.dumps({**record, "job_id": bobs.id, "user": "bob"}))
    words = [*GRIDTF, "cancel", *(job.seen_as for job in (first, wrong, second))]
    with bed.popen("login", *words, env=GRIDTF_ENVIRON) as one, bed.popen("login", *words, env=GRIDTF_ENVIRON) as other:
        for text in (finished(one, 1), finished(other, 1)):
            assert f"gridtf: job {bobs.id}: {TITLES[bed.kind]} does not cancel job {bobs.id}: " in text
            for job in (first, second):
                assert f"({job.id}): CANCELLED\n" in text
            assert text.count("does not cancel") == 1
    assert {job.status()["reason"] for job in (first, second)} == {"cancelled by alice on login"}
    assert bobs.status()["state"] == "PENDING"
