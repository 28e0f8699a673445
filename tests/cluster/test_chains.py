"""Jobs that start after others, on real schedulers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gridtf.run.rundir import RunDir
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterfaults import NODES, admin, mounted, no_process_left
from tests.support.clusterjobs import ClusterJob, gridtf
from tests.support.jobs import until

ONE_HOST = {"slurm": ("--nodes", "1"), "sge": ("--slots", "1", "--pe", "one")}
FORBIDS = {"slurm": "--native=--no-requeue", "sge": "--native=-r n"}
HOLDS = {"slurm": "--native=--hold", "sge": "--native=-h"}
CANCELS = {"slurm": "scancel", "sge": "qdel"}
SAVES = ("--time", "60", "--checkpoint-before", "3599s")
# ends with the code in the file goes-on-NAME once it is there
HELD = 'until [ -e "$HOME/goes-on-$0" ]; do sleep 0.2; done; exit $(cat "$HOME/goes-on-$0")'


def job(bed: Bed, name: str, *words: str, command: tuple[str, ...] = ("true",)) -> ClusterJob:
    options = (*bed.options, *ONE_HOST[bed.kind], "--workers", "1", "--kill-grace", "1", "--env", "HOME")
    return ClusterJob(bed, *options, "--name", name, *words, "--", *command)


def held(bed: Bed, name: str, *words: str) -> ClusterJob:
    (bed.home() / f"goes-on-{name}").unlink(missing_ok=True)
    return job(bed, name, *words, command=("bash", "-c", HELD, name))


def let(bed: Bed, name: str, code: int = 0) -> None:
    """Let a job end that is held."""
    path = bed.home() / f"goes-on-{name}"
    path.with_suffix(".new").write_text(str(code))
    path.with_suffix(".new").rename(path)


def ends(one: ClusterJob, state: str, code: int | None = None) -> str:
    """Wait for the end of a job, in this state; returns why."""
    done = one.gridtf("wait", "--json", "--timeout", "300", check=False, timeout=310)
    code = {"COMPLETED": 0, "SAVED": 42}.get(state, 1) if code is None else code
    assert done.returncode == code, f"{done.stdout}{done.stderr}{one.output}{one.bed.about(one.id)}"
    view = json.loads(done.stdout)
    assert view["state"] == state, view
    return str(view["reason"])


@on_every_scheduler
def test_jobs_start_when_others_have_ended_as_they_must(bed: Bed) -> None:
    good, bad = held(bed, "good"), held(bed, "bad")
    after = job(bed, "after", "--after", f"good,{good.id}", "--setup", "echo this is set up")
    both = job(bed, "both", "--after", "good", "--after-any", "bad")
    mends = job(bed, "mends", "--after-failed", "bad")
    never = job(bed, "never", "--after", "bad", "--setup", "echo this is set up")
    last = job(bed, "last", "--after", "never")
    after.until(lambda: good.run.attempts() and bad.run.attempts(), "the first two")
    view = after.status()
    assert (view["state"], view["reason"]) == ("PENDING", f"after good ({good.id})")
    assert "PENDING after good, bad" in gridtf(bed, "list").stdout
    let(bed, "good")
    ends(after, "COMPLETED")
    assert not both.run.attempts()
    let(bed, "bad", 3)
    ends(both, "COMPLETED")
    ends(mends, "COMPLETED")
    assert ends(never, "CANCELLED") == f"job bad ({bad.id}) is FAILED, and this one was to start after it had completed"
    assert ("this is set up" in after.output, "this is set up" in never.output) == (True, False)
    assert f"job never ({never.id}) is CANCELLED" in ends(last, "CANCELLED")
    options = ("--scheduler", bed.kind, *ONE_HOST[bed.kind])
    refused = gridtf(bed, "submit", *options, "--after", "bad", "--", "true", check=False)
    assert (refused.returncode, "is FAILED, so it has not completed" in refused.stderr) == (2, True), refused.stderr
    no_process_left(bed)


@on_every_scheduler
def test_job_waits_for_one_that_is_started_again_by_its_scheduler(bed: Bed) -> None:
    program = 'n=$(ls "$OUTPUT_DIR" | wc -l); [ "$n" -ge 2 ] && exit 0; echo > "$OUTPUT_DIR/$n"; exit 42'
    saves = job(bed, "saves", *SAVES, "--continue", "5", command=("bash", "-c", program))
    after = job(bed, "after", "--after", "saves")
    ends(after, "COMPLETED")
    assert len(saves.run.attempts()) == 3
    assert len(after.run.attempts()) == 1
    assert saves.verdict(attempt=3)["ended"] <= after.verdict()["started"]


@on_every_scheduler
def test_job_waits_for_the_one_that_goes_on_with_the_results(bed: Bed) -> None:
    """The job that it was to start after has saved and was resumed, twice; its scheduler does not know that."""
    first, other = held(bed, "train", *SAVES), held(bed, "other")
    after = job(bed, "after", "--after", "train,other")
    stays = job(bed, "stays", "--after", "train,other", FORBIDS[bed.kind])
    let(bed, "train", 42)
    ends(first, "SAVED")
    again = json.loads(gridtf(bed, "resume", "train", "--json").stdout)
    assert gridtf(bed, "wait", again["run_dir"], "--timeout", "300", check=False).returncode == 42
    (bed.home() / "goes-on-train").unlink()
    last = json.loads(gridtf(bed, "resume", "train", "--json").stdout)
    assert len({first.id, again["job_id"], last["job_id"]}) == 3
    let(bed, "other")
    ends(other, "COMPLETED")
    after.until(lambda: after.run.attempts() and after.run.attempt(1).verdict.exists(), "its first start")
    assert f"it waits further, after train ({first.id})" in after.verdict()["reason"]
    after.until(lambda: stays.status()["reason"] == f"after train ({first.id}), in its allocation", "the other's wait")
    assert stays.status()["state"] == "PENDING"
    queued = f"queued again after attempt 1 ended CANCELLED; after train ({first.id}), other ({other.id})"
    after.until(lambda: after.status()["reason"] == queued, "that it is queued again")
    let(bed, "train")
    ends(after, "COMPLETED")
    ends(stays, "COMPLETED")
    assert (len(after.run.attempts()), len(stays.run.attempts())) == (2, 1)
    home = RunDir(bed.shared / last["run_dir"].removeprefix(f"{SHARED}/"))
    assert (after.verdict(attempt=2)["started"]) >= json.loads(home.attempt(1).verdict.read_text())["ended"]
    no_process_left(bed)


@contextmanager
def doubts_of_seconds(bed: Bed) -> Iterator[None]:
    """Jobs doubt for 3 seconds, in place of 60, what the records of others lack: they would ask all the while."""
    conditions = CHECKOUT / "gridtf/bootstrap/judge/conditions.py"
    shorter = bed.home() / "conditions.py"
    before, whole, after = conditions.read_text().partition("\nDOUBT = 60.0 ")
    assert whole
    shorter.write_text(f"{before}\nDOUBT = 3.0 {after}")
    with ExitStack() as stack:
        for host in NODES:
            stack.enter_context(mounted(bed, host, "--bind", bed.seen(shorter), str(conditions)))
        yield


@on_every_scheduler
def test_job_that_was_deleted_before_it_began(bed: Bed) -> None:
    """It has no verdict, and Grid Engine has forgotten it."""
    first = job(bed, "first", HOLDS[bed.kind])
    with doubts_of_seconds(bed):
        after, anyhow = job(bed, "after", "--after", "first"), job(bed, "anyhow", "--after-any", "first")
        bed.run("login", CANCELS[bed.kind], first.id, user="alice")
        assert f"job first ({first.id}) is " in ends(after, "CANCELLED")
        ends(anyhow, "COMPLETED")
        no_process_left(bed)


def test_job_that_slurm_has_forgotten(accounting_slurm: Bed) -> None:
    bed = accounting_slurm  # after two seconds
    admin(bed, "sacctmgr", "-i", "add", "account", "chains")
    admin(bed, "sacctmgr", "-i", "add", "user", "bob", "account=chains")
    try:
        options = ("--scheduler", "slurm", "--nodes", "1", "--workers", "1", "--name", "first")
        known = ("submit", *options, "--", "true")  # the account may be known late
        until(lambda: gridtf(bed, *known, user="bob", check=False).returncode == 0, "that bob has an account")
        first = ClusterJob(bed, *options, "--", "true", user="bob")
        ends(first, "COMPLETED")
        queue = ("squeue", "-h", "-t", "all", "-o", "%i")
        first.until(lambda: first.id not in bed.run("login", *queue).stdout.split(), "Slurm to forget it")
        after = ClusterJob(bed, *options, "--after", first.id, "--", "true", user="bob")
        assert "--dependency" not in after.run.script.read_text()
        ends(after, "COMPLETED")
    finally:  # other tests need a bob without an account
        admin(bed, "sacctmgr", "-i", "delete", "user", "bob", "account=chains")


def test_job_that_is_deleted_before_it_begins_is_cancelled(sge: Bed) -> None:
    first = job(sge, "first", "--native=-h")
    after = job(sge, "after", "--after", "first")
    sge.run("login", "qdel", first.id)
    assert f"job first ({first.id}) is CANCELLED" in ends(after, "CANCELLED")
    assert first.status()["state"] == "CANCELLED"


@on_every_scheduler
def test_job_of_another_user_is_refused(bed: Bed) -> None:
    first = held(bed, "first")
    options = ("submit", "--scheduler", bed.kind, *ONE_HOST[bed.kind])
    for word in (first.seen_as, first.id):
        refused = gridtf(bed, *options, "--after-any", word, "--", "true", user="bob", check=False)
        assert refused.returncode == 2
        assert f"--after-any: job {word} belongs to user alice" in refused.stderr, refused.stderr
    unknown = gridtf(bed, *options, "--after", "4711", "--", "true", user="bob", check=False)
    assert "for a job without gridtf write --native=" in unknown.stderr, unknown.stderr
    let(bed, "first")
    ends(first, "COMPLETED")
