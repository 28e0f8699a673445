"""Jobs of the local scheduler that start after others, and the steps of a job file."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from gridtf.run.rundir import RunDir, read_record
from tests.support.commands import as_json, call, python, running, status, submit
from tests.support.jobs import until

ENDS = python("print('done')")
FAILS = python("import sys; sys.exit(3)")
# ends when the file goes-on is made
HELD = python("import os, time\nwhile not os.path.exists('goes-on'): time.sleep(0.05)")


def ended(job: dict[str, str], state: str) -> dict[str, object]:
    """Wait for a job's end, in this state."""
    call("wait", job["run_dir"], code=0 if state == "COMPLETED" else 1)
    view = status(job["run_dir"])
    assert view["state"] == state, view
    return view


def begun(job: dict[str, str]) -> bool:
    return bool(RunDir(job["run_dir"]).attempts())


def test_job_starts_when_the_others_have_completed(here: Path) -> None:
    held, quick = submit("--name", "held", *HELD), submit("--name", "quick", *ENDS)
    after = submit("--name", "after", "--after", f"held,{quick['job_id']}", *ENDS)
    ended(quick, "COMPLETED")
    view = status("after")
    names = f"held ({held['job_id']}), quick ({quick['job_id']})"
    assert (view["state"], view["reason"]) == ("PENDING", f"after {names}")
    assert "PENDING after held, quick" in call("list").stdout
    lines = f"after          held ({held['job_id']}) RUNNING\n{'':15}quick ({quick['job_id']}) COMPLETED"
    assert lines in call("status", "after").stdout
    assert [link["kind"] for link in view["chain"]] == ["after", "after"]
    assert not begun(after)
    clean = call("clean", quick["job_id"], "--yes", code=1).stderr
    assert f"quick ({quick['job_id']}) is kept: job {after['job_id']} starts after it" in clean
    (here / "goes-on").touch()
    ended(after, "COMPLETED")
    first = read_record(RunDir(held["run_dir"]).attempt(1).verdict) or {}
    second = read_record(RunDir(after["run_dir"]).attempt(1).verdict) or {}
    assert first["ended"] <= second["started"]


def test_job_whose_condition_can_not_come_is_ended_and_says_so(here: Path) -> None:
    held = submit("--name", "held", *HELD)
    after = submit("--name", "b", "--after", "held", "--setup", "echo this is set up", *ENDS)
    last = submit("--name", "c", "--after", "b", *ENDS)
    ends_anyhow = submit("--name", "d", "--after-any", "b", "--setup", "echo this is set up", *ENDS)
    logs = [RunDir(job["run_dir"]).log for job in (after, ends_anyhow)]
    mends = submit("--name", "e", "--after-failed", "held", *ENDS)
    never = submit("--name", "f", "--after-failed", "e", *ENDS)
    call("cancel", "held")
    view = ended(after, "CANCELLED")
    why = f"job held ({held['job_id']}) is CANCELLED, and this one was to start after it had completed"
    assert view["reason"] == why
    assert "gridtf resume" in str(view["hint"])
    assert f"job b ({after['job_id']}) is CANCELLED" in str(ended(last, "CANCELLED")["reason"])
    ended(ends_anyhow, "COMPLETED")
    assert ["this is set up" in log.read_text() for log in logs] == [False, True]
    ended(mends, "COMPLETED")
    assert "is COMPLETED, and this one was to start after it had failed" in str(ended(never, "CANCELLED")["reason"])
    refused = call("submit", "--after", "b", *ENDS, code=2).stderr
    assert f"job b ({after['job_id']}) is CANCELLED, so it has not completed, and will not" in refused


def test_job_that_waits_is_cancelled(here: Path) -> None:
    submit("--name", "held", *HELD)
    after = submit("--after", "held", *ENDS)
    own = Path("/proc", after["job_id"].partition(".")[0])

    def takes_signals() -> bool:
        """Until then one ends the job runner, which leaves the mark that the job waits."""
        blocked = int((own / "status").read_text().partition("SigBlk:")[2].split()[0], 16)
        # while a process waits for signals, the kernel shows them as not blocked
        return bool(blocked & 1 << (signal.SIGTERM - 1)) or "sigtimedwait" in (own / "wchan").read_text()

    until(takes_signals, "the runner")
    call("cancel", after["run_dir"])
    view = status(after["run_dir"])
    assert (view["state"], view["attempt"]) == ("CANCELLED", None)
    assert "cancelled by" in view["reason"]
    assert not RunDir(after["run_dir"]).waiting.exists()


def test_job_waits_for_the_one_that_goes_on(here: Path) -> None:
    """The one that it was to start after has saved; another job goes on with its results, and saves again; a third."""
    saves = python(
        "import os, sys, time\nstarts = len([one for one in os.listdir(os.environ['OUTPUT_DIR']) if one.isdigit()])\n"
        "while not os.path.exists(f'goes-on-{starts}'): time.sleep(0.05)\n"
        "open(os.path.join(os.environ['OUTPUT_DIR'], str(starts)), 'w')\nsys.exit(42 if starts < 2 else 0)"
    )
    first = submit("--name", "train", "--time", "600s", "--checkpoint-before", "599s", *saves)
    held = submit("--name", "held", *HELD)
    after = submit("--name", "after", "--after", "train,held", *ENDS)
    for starts in range(2):
        (here / f"goes-on-{starts}").touch()
        call("wait", "train", code=42)
        running_now = as_json("resume", "train")
        running(running_now["run_dir"])
    (here / "goes-on").touch()
    ended(held, "COMPLETED")
    assert status("after")["state"] == "PENDING"
    assert first["job_id"] != running_now["job_id"]
    assert not begun(after)
    (here / "goes-on-2").touch()
    ended(after, "COMPLETED")


def test_removed_run_directory_ends_those_that_wait_for_it(here: Path) -> None:
    held = submit("--name", "held", *HELD)
    after = submit("--after", "held", *ENDS)
    running("held")
    (here / "goes-on").touch()
    RunDir(held["run_dir"]).path.rename(here / "elsewhere")
    view = ended(after, "CANCELLED")
    assert "does not exist any more" in str(view["reason"])


def test_job_that_runs_here_waits_for_none(here: Path) -> None:
    refused = call("run", "--quiet", "--after", "x", "--", "true", code=2).stderr
    assert "--after: a job that runs here does not wait for others" in refused


STEPS = """
name = "digits"

[steps.train]
command = ["{python}", "-c", "import os; open(os.environ['OUTPUT_DIR'] + '/model', 'w').write('weights')"]

[steps.evaluate]
command = ["{python}", "-c", "import sys; print('found', open(sys.argv[1]).read())", "{{steps.train.output_dir}}/model"]

[steps.export]
entry = "export:main"
[steps.export.env]
TRAINED = "{{steps.train.output_dir}}"

[steps.mend]
after_failed = ["evaluate"]
command = ["true"]
"""


def test_steps_of_a_file_follow_each_other(here: Path) -> None:
    (here / "gridtf.toml").write_text(STEPS.format(python=sys.executable))
    (here / "export.py").write_text("import os\ndef main(): print('from', sorted(os.listdir(os.environ['TRAINED'])))\n")
    done = call("submit", "--wait", "--kill-grace", "1", code=1)  # of the step that can never start
    jobs = {job: status(job) for job in ("digits-train", "digits-evaluate", "digits-export", "digits-mend")}
    assert [view["state"] for view in jobs.values()] == ["COMPLETED"] * 3 + ["CANCELLED"], done.stdout
    assert "found weights" in call("logs", "digits-evaluate").stdout
    assert "from ['model']" in call("logs", "digits-export").stdout
    names = [(link["kind"], link["name"], link["state"]) for link in jobs["digits-export"]["chain"]]
    steps = [("step", name, "COMPLETED") for name in ("train", "evaluate", "export")]
    assert names == [("after", "digits-evaluate", "COMPLETED"), *steps, ("step", "mend", "CANCELLED")]
    assert "steps          train (" in call("status", "digits-train").stdout
    spec = json.loads(RunDir(jobs["digits-mend"]["run_dir"]).job.read_text())["spec"]
    assert (spec["kill_grace"], spec["after_failed"]) == (1, [jobs["digits-evaluate"]["run_dir"]])


def test_nothing_is_left_of_steps_of_which_one_is_refused(here: Path) -> None:
    (here / "export.py").write_text("def main(): pass\n")
    text = STEPS.format(python=sys.executable) + '[steps.last]\ncommand = ["true"]\ntasks.worker.count = 9999\n'
    (here / "gridtf.toml").write_text(text)
    refused = call("submit", code=2).stderr
    assert "9999 training tasks do not fit" in refused, refused
    assert not (here / "gridtf-runs").exists()
    assert call("list").stdout == "no jobs yet\n"
