"""What users see of a job on several hosts, one of which has a wrong clock: live, afterwards, and as other users."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gridtf.observe import history
from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, UNTIL_GO, begun, finished, mounted, no_process_left, started
from tests.support.clusterjobs import GRIDTF, ClusterJob, gridtf
from tests.support.jobs import hosts_of

AHEAD = 3600  # seconds
# worker:1 fails when the test says so; the next attempt completes.
PROGRAM = """
for step in {1..8}; do echo step $step; sleep 0.25; done
[ ! -e failed ] || exit 0
until ls | grep -qx fail; do sleep 0.2; done
[ "$GRIDTF_TASK_INDEX" != 1 ] || { touch failed; echo 'ValueError: no such batch'; exit 3; }
sleep 300
"""
# In the place of TensorBoard: shows the files of its folder.
SERVER = """
import functools, http.server, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=options["--logdir"])
http.server.HTTPServer((options["--host"], int(options["--port"])), handler).serve_forever()
"""
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=180).read().decode())"
SHOWS_MAIL = {"slurm": "scontrol show job {id}", "sge": "qstat -j {id}"}


@contextmanager
def wrong_clock(bed: Bed, host: str) -> Iterator[None]:
    """On this host, the clock of agents is ahead."""
    node = CHECKOUT / "gridtf/bootstrap/agent/node.py"
    wrong = bed.home() / "wrong_node.py"
    ahead = f"import time\n_right = time.time\ntime.time = lambda: _right() + {AHEAD}\n"
    future = "from __future__ import annotations\n"
    wrong.write_text(node.read_text().replace(future, future + ahead, 1))
    with mounted(bed, host, "--bind", bed.seen(wrong), str(node)):
        yield


@on_every_scheduler
def test_job_is_seen_live_over_a_restart_and_afterwards(bed: Bed) -> None:
    options = ("--restarts", "1", "--sample-interval", "1", "--log-limit", "1M", "--notify", "mail:alice@example.org")
    with wrong_clock(bed, "n2"):
        job = started(bed, *options, nodes=3, name="seen", command=PROGRAM)
        assert job.tasks()["worker:1"]["started"] > time.time() + AHEAD / 2
        with begun(job, "logs", "-f") as following:
            said = bed.run("login", *SHOWS_MAIL[bed.kind].format(id=job.id).split()).stdout
            assert "alice@example.org" in said
            job.until(lambda: all("sample" in host for host in hosts_of(job.run.latest()).values()), "samples")
            _seen_by_others(bed, job)
            assert 'gridtf_task_cpu_cores{job="' in gridtf(bed, "metrics").stdout
            (bed.home() / "fail").touch()
            printed = finished(following, 0)
    for host in ("worker:0@n1 |", "worker:1@n2 |", "worker:2@n3 |"):
        assert printed.count(f"{host} step 8") == 2, printed
    assert printed.index("ValueError") < printed.index("--- attempt 2 ---")
    merged = job.gridtf("logs", "--attempt", "1").stdout
    assert merged.index("worker:1@n2 | step 1") < merged.index("worker:0@n1 | step 8")
    assert merged.index("worker:0@n1 | step 1") < merged.index("worker:1@n2 | step 8")
    assert "worker:1@n2\n  ValueError: no such batch" in job.gridtf("logs", "--errors", "--attempt", "1").stdout
    assert all(event["time"] < time.time() + AHEAD / 2 for event in history.events(job.run).more())
    page = job.gridtf("report", "-o", "-").stdout
    assert "attempt 2" in page
    assert "exit code 3" in page
    assert "seen" in gridtf(bed, "list", "--state", "COMPLETED").stdout
    kept = gridtf(bed, "clean", "--older-than", "1d", "--dry-run")
    assert Path(job.seen_as).name not in kept.stdout
    no_process_left(bed)


def _seen_by_others(bed: Bed, job: ClusterJob) -> None:
    """Root sees all of a job; another user what the job's owner lets others read, and cannot cancel it."""
    view = json.loads(gridtf(bed, "status", "--json", job.seen_as, user="root").stdout)
    assert [task["host"] for task in view["tasks"]] == ["n1", "n2", "n3"]
    assert all(task["sample"] for task in view["tasks"])
    assert "RUNNING" in gridtf(bed, "status", job.seen_as, user="bob").stdout
    assert "step 1" in gridtf(bed, "logs", job.seen_as, user="bob").stdout
    refused = gridtf(bed, "cancel", job.seen_as, user="bob", check=False)
    assert refused.returncode != 0
    assert "alice and root can cancel it" in refused.stderr
    once = gridtf(bed, "monitor", "--once", job.seen_as, user="root").stdout
    assert once.count("RUNNING") == 4


@on_every_scheduler
def test_followed_job_is_said_to_run_as_soon_as_it_does(bed: Bed) -> None:
    words = (*GRIDTF, "submit", "-f", *bed.options, "--nodes", "2", "--tasks-per-node", "1")
    command = f"{UNTIL_GO.replace('go', 'said')}; echo here"
    with bed.popen("login", *words, "--", "bash", "-c", command, env=GRIDTF_ENVIRON) as process:
        assert process.stderr is not None
        said = ""
        while not ("running; 2 tasks on 2 hosts" in said and "allocated 2 hosts: n1, n2" in said):
            line = process.stderr.readline()
            assert line, said
            said += line
        (bed.home() / "said").touch()
        printed = finished(process, 0)
    (bed.home() / "said").unlink()
    assert "worker:1@n2 | here" in printed
    assert "COMPLETED" in printed


@on_every_scheduler
def test_tensorboard_runs_in_a_job_of_its_own_and_is_reached_through_the_login_host(bed: Bed) -> None:
    python = bed.home() / "python"
    package = bed.home() / "modules/tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(SERVER)
    real = shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={bed.seen(package.parent)}:$PYTHONPATH exec {real} "$@"\n')
    python.chmod(0o755)
    words = ("--python", bed.seen(python))
    job = started(bed, *words, nodes=1, name="shown", command="echo 12 > $OUTPUT_DIR/accuracy", running=False)
    assert "COMPLETED" in job.gridtf("wait").stdout
    with begun(job, "tensorboard", "--in-job") as process:
        assert process.stdout is not None
        _, forward, _, warning = (process.stdout.readline() for _ in range(4))
        found = re.search(r"ssh -L (\d+):127\.0\.0\.1:\1 -J alice@login alice@(n\d)$", forward)
        assert found, forward
        port, host = found.groups()
        assert f"Every user of {host} can connect" in warning
        accuracy = f"http://127.0.0.1:{port}/accuracy"
        job.until(lambda: bed.run(host, sys.executable, "-c", READ, accuracy, check=False).stdout == "12\n\n", "it")
        assert "tensorboard-shown" in gridtf(bed, "list", "--state", "RUNNING").stdout
        process.terminate()
        assert "CANCELLED" in finished(process, 130)
    no_process_left(bed)
