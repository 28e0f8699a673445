"""Jobs of a real scheduler, compared by their owner and by another user."""

from __future__ import annotations

import json

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, gridtf


@on_every_scheduler
def test_jobs_are_compared_by_their_owner_and_by_another_user(bed: Bed) -> None:
    shape, env = ("--tasks-per-node", "1", "--nodes"), "A_KEY=hunter22-secret"
    first, second = jobs = [
        ClusterJob(
            bed, *bed.options, "--name", f"hosts-{n}", *shape, n, "--env", f"{env}{n}", "--", "test", n, "=", "1"
        )
        for n in ("1", "2")
    ]
    for job in jobs:
        job.verdict()
        gridtf(bed, "wait", job.id, check=False)
    rows = json.loads(gridtf(bed, "report", "hosts-1", "hosts-2", "--json").stdout)
    assert [(row["job_id"], row["scheduler"], row["state"]) for row in rows] == [
        (first.id, bed.kind, "COMPLETED"),
        (second.id, bed.kind, "FAILED"),
    ]
    assert [row["hosts"] for row in rows] == [" ".join(task["host"] for task in job.tasks().values()) for job in jobs]
    text = gridtf(bed, "diff", "hosts-1", "hosts-2").stdout
    assert "  tasks  1 -> 2\n" in text
    assert "  state  COMPLETED -> FAILED\n" in text
    assert "  nodes  1 (--nodes) -> 2 (--nodes)\n" in text
    theirs = gridtf(bed, "diff", first.seen_as, second.seen_as, user="bob").stdout
    theirs = " ".join(theirs.split())
    assert "state COMPLETED -> FAILED" in theirs
    assert f"not known: specification: that of {first.seen_as}" in theirs
    page = gridtf(bed, "report", first.seen_as, second.seen_as, first.seen_as, "-o", "-", user="bob").stdout
    assert "The specification of 1, 2, 3 is not known here" in page
    for said in (text, theirs, page):
        assert "hunter" not in said
