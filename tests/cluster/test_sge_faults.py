"""Faults of jobs on a real Grid Engine: the job ends, says why, and leaves no process behind."""

from __future__ import annotations

import os
import shlex
import sys
import time

import pytest

from gridtf.run.rundir import read_record
from tests.support.cluster import CHECKOUT, Bed
from tests.support.clusterfaults import (
    PROMPT,
    STUBBORN,
    UNTIL_RELEASED,
    admin,
    begun,
    ended,
    finished,
    forget_addresses,
    kill9,
    late_agents,
    mounted,
    no_process_left,
    parent,
    release,
    started,
)
from tests.support.clusterjobs import ClusterJob
from tests.support.jobs import hosts_of
from tests.support.sgefaults import RUN, ScriptJob, changed, shepherd

KILLED = "ended without a verdict: the launcher on n1 was killed"


def by_hand(bed: Bed, *options: str, command: str = STUBBORN, hosts: int = 4, more: str = "") -> ScriptJob:
    """A job with one task per host from a hand-written script, without -notify unless the options have it.

    Args:
        bed: The cluster.
        options: Options of qsub.
        command: The command of the tasks.
        hosts: The number of hosts.
        more: Options of gridtf_run.
    """
    script = f"{RUN} {more} -- bash -c {shlex.quote(command)}\n"
    job = ScriptJob(bed, script, "-pe", "one", str(hosts), *options)
    job.until(job.run.latest, "an attempt")
    job.running(hosts)
    return job


def status_becomes(job: ClusterJob, state: str, *pieces: str) -> None:
    """Wait for the status of a job without a verdict: the accounting is written a little after the end."""

    def reached() -> bool:
        view = job.status()
        return view["state"] == state and all(piece in view["reason"] for piece in pieces)

    try:
        job.until(reached, f"{state}: {pieces}")
    except AssertionError as error:
        raise AssertionError(f"{job.status()}") from error


def in_queue(bed: Bed) -> list[str]:
    """The jobs that qstat shows."""
    return [line.split()[0] for line in bed.run("login", "qstat", "-u", "*").stdout.splitlines()[2:]]


# --- the job is ended


def test_qdel(sge: Bed) -> None:
    job = started(sge, command=STUBBORN)
    sge.run("login", "qdel", job.id)
    ended(job, "CANCELLED", "deleted with qdel")
    no_process_left(sge)
    assert job.status()["state"] == "CANCELLED"


def test_qdel_by_force(sge: Bed) -> None:
    job = started(sge, nodes=2)
    admin(sge, "qdel", "-f", job.id)
    ended(job, "CANCELLED", "deleted with qdel -f")
    no_process_left(sge)


def test_qdel_during_the_set_up(sge: Bed) -> None:
    """Grid Engine's warning ends the script; `gridtf wait` waits some seconds for the accounting of that."""
    job = started(sge, "--setup", "echo begun; sleep 60", nodes=1, running=False)
    job.until(lambda: "begun" in job.output, "its set-up")
    sge.run("login", "qdel", job.id)
    expected = "CANCELLED", "deleted with qdel during the set-up"
    assert f"fault ({job.id}): {expected[0]}\n  {expected[1]}\n" in job.gridtf("wait", check=False).stdout
    view = job.status()
    assert (view["state"], view["reason"]) == expected
    no_process_left(sge)


def test_qdel_of_a_script_without_notify(sge: Bed) -> None:
    job = by_hand(sge)
    sge.run("login", "qdel", job.id)
    no_process_left(sge)
    status_becomes(job, "FAILED", f"{KILLED} by SIGKILL: by qdel")


def test_qdel_of_a_hand_written_script_with_notify(sge: Bed) -> None:
    job = by_hand(sge, "-notify")
    sge.run("login", "qdel", job.id)
    ended(job, "CANCELLED", "deleted with qdel")
    no_process_left(sge)
    job.until(lambda: "the script ends with 1" in job.output, "the end of the script")


def test_walltime(sge: Bed) -> None:
    job = started(sge, "--time", "30s", command=STUBBORN)
    ended(job, "TIMEOUT", "the walltime is over (h_rt)", "--time")
    no_process_left(sge)
    assert job.gridtf("wait", check=False).returncode == 1
    assert job.status()["state"] == "TIMEOUT"


def test_walltime_of_the_queue(sge: Bed) -> None:
    with changed(sge, "h_rt", "0:0:30", "short.q"):
        job = started(sge, "--partition", "short.q", "--pe", "rr", nodes=2, command=STUBBORN)
        ended(job, "TIMEOUT", "the walltime is over (h_rt of queue short.q)", "--time")
    no_process_left(sge)


def test_memory_of_all_processes_of_a_job(sge: Bed) -> None:
    program = "import os, time; os.fork(); os.fork(); used = bytearray(5 * 10**8); time.sleep(300)"
    command = f"exec {shlex.quote(sys.executable)} -c '{program}'"
    job = started(sge, "--time", "10m", "--native=-l h_vmem=1G", nodes=1, command=command, running=False)
    ended(job, "OUT_OF_MEMORY", "it used more memory than requested (h_vmem)")
    no_process_left(sge)


def test_walltime_of_a_script_without_notify(sge: Bed) -> None:
    job = by_hand(sge, "-l", "h_rt=30")  # in which a busy machine starts the tasks
    no_process_left(sge, seconds=180)
    status_becomes(
        job, "TIMEOUT", "the launcher on n1 ended; the scheduler reports TIMEOUT, the walltime is over (h_rt"
    )


def test_job_is_killed_while_it_ends_its_tasks(sge: Bed) -> None:
    job = started(sge, "--kill-grace", "25", nodes=2, command=STUBBORN)  # KILL follows the warning after 15 s
    sge.run("login", "qdel", job.id)
    status_becomes(job, "CANCELLED", "deleted with qdel; the launcher on n1 was killed before it had ended all tasks")
    no_process_left(sge)


def test_requeued_job_starts_again(sge: Bed) -> None:
    # with -notify it would be killed a minute later, and not be started again
    command = f"[ $GRIDTF_ATTEMPT = 2 ] || {{ {STUBBORN}; }}"
    job = by_hand(sge, "-r", "y", command=command, hosts=2)
    first = job.attempt.rendezvous.read_text()
    # Grid Engine 8.1.9 may keep a job in state Rt for good that it requeues in state t, before sge_qmaster has heard of
    # its start, or that it starts again on a host whose sge_execd still ends the first start
    job.until(lambda: (job.id, "r") in job.states(), "sge_qmaster to know that it runs")
    used = [f"*@{host}" for host in hosts_of(job.attempt)]
    admin(sge, "qmod", "-d", *used)
    try:
        admin(sge, "qmod", "-rj", job.id)
        ended(job, "COMPLETED", attempt=2, seconds=240)
    finally:
        admin(sge, "qmod", "-e", *used)
    no_process_left(sge)
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    assert job.run.attempt(1).rendezvous.read_text() == first != job.run.attempt(2).rendezvous.read_text()


def test_rescheduled_job_has_reached_no_limit(sge: Bed) -> None:
    """With -notify a start is warned; the second one, on the same host, as well."""
    job = started(sge, "--native=-q all.q@n2", nodes=1, command=STUBBORN, running=False)
    for number in (1, 2):
        attempt = job.run.attempt(number)
        job.until(attempt.rendezvous.exists, "the start")
        time.sleep(6)  # sge_execd does not end a start that is only two seconds old, whatever qstat says
        admin(sge, "qmod", "-d", "all.q@n2")  # else it may begin before its host has ended it: see above
        try:
            admin(sge, "qmod", "-rj", job.id)
            assert ended(job, "CANCELLED", "rescheduled, as by qmod -rj", attempt=number)["again"] is True
            assert job.status()["state"] == "PENDING"
        finally:
            admin(sge, "qmod", "-e", "all.q@n2")
    assert "CANCELLED" in job.gridtf("cancel").stdout
    no_process_left(sge)


def test_script_that_exits_with_99_starts_again(sge: Bed) -> None:
    # RESTARTED is 1 in the second start and in the third
    job = ScriptJob(sge, f"{RUN} -- bash -c '[ $GRIDTF_ATTEMPT = 3 ]' || exit 99\n", "-pe", "one", "2", "-r", "y")
    for attempt in (1, 2):
        ended(job, "FAILED", "exit code 1", attempt=attempt)
    ended(job, "COMPLETED", attempt=3)
    view = job.status()
    assert (view["state"], view["attempt"]) == ("COMPLETED", 3)


def test_suspended_job_resumes(sge: Bed) -> None:
    # Grid Engine stops and resumes the hosts one after the other, on a busy machine with seconds in between
    job = by_hand(sge, command=UNTIL_RELEASED, hosts=2, more="--heartbeat-timeout 10")
    pid = (read_record(job.attempt.launcher) or {})["pid"]
    admin(sge, "qmod", "-sj", job.id)

    def stopped() -> bool:
        return sge.run("n1", "ps", "-o", "stat=", "-p", str(pid), user="root").stdout.startswith("T")

    job.until(stopped, "it to be stopped")
    assert "suspended" in job.status()["reason"]
    time.sleep(11)  # longer than the timeout
    admin(sge, "qmod", "-usj", job.id)
    release(job)
    ended(job, "COMPLETED")


# --- a process is killed


def test_crashed_task_lets_other_tasks_end_in_good_order(sge: Bed) -> None:
    crash = "until [ $(ls $OUTPUT_DIR | wc -l) = 3 ]; do sleep 0.1; done; kill -SEGV $$"  # once the others are ready
    ready = "trap 'echo told; sleep 1; echo saved; exit 0' TERM; touch $OUTPUT_DIR/$RANK; sleep 300 & wait"
    command = f"[ $RANK != 2 ] || {{ {crash}; }}; {ready}"
    job = started(sge, "--kill-grace", "4", command=command, running=False)
    ended(job, "FAILED", "worker:2 on n3: killed by SIGSEGV")
    assert all("saved" in job.logs()[f"worker-{index}"] for index in (0, 1, 3))  # they were not killed by Grid Engine
    no_process_left(sge)


# Each is the parent of the one before.
PROCESSES = ("agent", "supervisor", "sh", "qrsh_starter", "sge_shepherd")


@pytest.mark.parametrize("process", ["agent", "supervisor", "sge_shepherd"])
def test_killed_ancestor_of_the_tasks_fails_the_job(sge: Bed, process: str) -> None:
    job = started(sge)
    pid = job.tasks()["worker:2"]["agent"]
    for _ in range(PROCESSES.index(process)):
        pid = parent(sge, "n3", pid)
    killed = time.time()
    kill9(sge, "n3", pid)
    verdict = ended(job, "FAILED", "agent on host n3")
    assert verdict["ended"] - killed < PROMPT
    no_process_left(sge)
    assert job.status()["state"] == "FAILED"


def test_killed_qrsh_starter_does_not_matter(sge: Bed) -> None:
    job = started(sge, nodes=2, command=UNTIL_RELEASED)
    pid = job.tasks()["worker:1"]["agent"]
    for _ in range(PROCESSES.index("qrsh_starter")):
        pid = parent(sge, "n2", pid)
    kill9(sge, "n2", pid)
    release(job)
    ended(job, "COMPLETED")
    no_process_left(sge)


def test_killed_agent_of_the_first_host_fails_the_job(sge: Bed) -> None:
    job = started(sge)
    killed = time.time()
    kill9(sge, "n1", job.tasks()["worker:0"]["agent"])
    verdict = ended(job, "FAILED", "the agent on host n1 was killed by SIGKILL")
    assert verdict["ended"] - killed < PROMPT
    no_process_left(sge)


def test_killed_qrsh_fails_the_job(sge: Bed) -> None:
    job = started(sge)
    killed = time.time()
    admin(sge, "pkill", "-9", "-f", "qrsh -inherit .* n2 ", host="n1")  # in n1's own namespace of processes
    verdict = ended(job, "FAILED", "qrsh, the connection to host n2, was killed by SIGKILL")
    assert verdict["ended"] - killed < PROMPT
    no_process_left(sge)


def test_killed_launcher_fails_the_job(sge: Bed) -> None:
    job = started(sge, command=STUBBORN)
    kill9(sge, "n1", (read_record(job.attempt.launcher) or {})["pid"])
    no_process_left(sge, seconds=PROMPT)
    status_becomes(job, "FAILED", f"{KILLED} by SIGKILL")
    assert job.status()["exit_code"] != 0


@pytest.mark.parametrize("exec_script", [True, False], ids=["rendered", "by hand"])
def test_killed_shepherd_of_the_script_fails_the_job(sge: Bed, exec_script: bool) -> None:
    """Grid Engine starts the job again after a while, and does not end the processes of its first start."""
    job = started(sge, command=STUBBORN) if exec_script else by_hand(sge)
    killed = time.time()
    kill9(sge, "n1", shepherd(sge, "n1"))
    verdict = ended(job, "FAILED", "the job script on host n1, or the sge_shepherd that had started it, was killed")
    assert verdict["ended"] - killed < PROMPT
    no_process_left(sge)


def test_job_that_grid_engine_starts_again_is_not_over(sge: Bed) -> None:
    """A job on one host is started again within seconds or minutes, whatever the verdict of its first start."""
    jobs = [started(sge, f"--native=-q all.q@{host}", nodes=1, command=STUBBORN) for host in ("n1", "n2")]
    again, cancelled = jobs
    with begun(again, "wait") as waits:
        kill9(sge, "n1", shepherd(sge, "n1"))
        kill9(sge, "n2", shepherd(sge, "n2"))
        ended(cancelled, "FAILED", "sge_shepherd that had started it, was killed", "start the job again")
        assert "has already ended" not in cancelled.gridtf("cancel").stderr
        assert cancelled.id not in in_queue(sge)
        again.until(lambda: len(again.run.attempts()) == 2, "the second start", 240)
        again.running(1)
        assert waits.poll() is None
        assert again.status()["state"] == "RUNNING"
        assert "CANCELLED" in again.gridtf("cancel").stdout
        assert "CANCELLED" in finished(waits, 1)
    no_process_left(sge)
    assert not in_queue(sge)


# --- the run directory


def test_closed_or_removed_run_directory_costs_the_job_nothing_but_records(sge: Bed) -> None:
    """The job goes on, and `gridtf wait` fails with a hint, not as wrong usage."""
    closed, removed = (started(sge, nodes=1, name=name, command=STUBBORN) for name in ("closed", "removed"))
    with begun(closed, "wait") as first, begun(removed, "wait") as second:
        for waits in (first, second):
            assert waits.stderr is not None
            assert "running" in waits.stderr.readline()
        admin(sge, "chmod", "000", closed.seen_as, host="login")
        admin(sge, "mv", removed.seen_as, f"{removed.seen_as}.away", host="login")
        assert f"it is yours: chmod u+rwX {closed.seen_as}" in finished(first, 1)
        assert "was removed while gridtf waited for its job" in finished(second, 1)
    admin(sge, "chmod", "755", closed.seen_as, host="login")
    status_becomes(closed, "RUNNING", "1 task on 1 host")
    closed.gridtf("cancel")
    admin(sge, "qdel", removed.id, host="login")
    no_process_left(sge)


# --- signals


def test_warning_signals_of_grid_engine_do_not_end_tasks(sge: Bed) -> None:
    """Every process of the job on every host gets them, before a suspension or the end."""
    command = "trap 'echo told; exit 0' TERM; echo ready; for i in {1..300}; do sleep 0.1; done"
    job = started(sge, command=command)
    job.until(lambda: all("ready" in text for text in job.logs().values()) and len(job.logs()) == 4, "all tasks")
    for host in ("n1", "n2", "n3", "n4"):
        admin(sge, "pkill", "-USR1", "-u", "alice", host=host)
    time.sleep(1)
    assert job.status()["state"] == "RUNNING"
    for host in ("n2", "n3", "n4", "n1"):
        admin(sge, "pkill", "-USR2", "-u", "alice", host=host)
    ended(job, "TIMEOUT")
    assert all("told" in text for text in job.logs().values())
    no_process_left(sge)


# --- it cannot start everywhere


def test_parallel_environment_without_control_slaves_is_reported(sge: Bed) -> None:
    job = ScriptJob(sge, f"{RUN} -- true\n", "-pe", "loose", "4")
    ended(job, "FAILED", "Grid Engine has not started the agent on host n", "`qconf -sp loose`: control_slaves TRUE")
    job.until(lambda: "the script ends with 1" in job.output, "the end of the script")
    no_process_left(sge)


def test_too_many_qrsh_on_a_host_are_reported(sge: Bed) -> None:
    others = (
        "for i in 1 2; do $SGE_BINARY_PATH/qrsh -inherit -nostdin n2 /bin/sh -c"
        " \"'touch $PWD/other.$JOB_ID.$i; sleep 60'\" & done\n"
        "until [ -e other.$JOB_ID.1 ] && [ -e other.$JOB_ID.2 ]; do sleep 0.1; done\n"
    )
    job = ScriptJob(sge, f"{others}{RUN} -- true\n", "-pe", "one", "2")
    ended(job, "FAILED", "Grid Engine has not started the agent on host n2", "does another qrsh of this job run there?")
    no_process_left(sge)


def test_run_directory_that_is_not_shared_is_reported(sge: Bed) -> None:
    script = f"{RUN} --run-dir /run/testbed/disk/alice/run -- true\n"
    admin(sge, "install", "-d", "-o", "alice", "/run/testbed/disk/alice", host="n1")
    admin(sge, "chmod", "o+x", "/run/testbed/disk", host="n1")
    try:
        job = ScriptJob(sge, script, "-pe", "one", "2")
        job.until(lambda: "the script ends with 1" in job.output, "its end")
        assert "the agent on host n2 cannot see the run directory: it must be on a file system" in job.output
    finally:
        admin(sge, "rm", "-r", "/run/testbed/disk/alice", host="n1")
    no_process_left(sge)


def test_host_that_cannot_connect_back_is_reported(sge: Bed) -> None:
    """Its qrsh_starter gives up, which ends it by SIGHUP, and so Grid Engine deletes the job. sge_execd there, which
    asks for addresses less often, still knows the right one."""
    wrong = sge.home() / "wrong-hosts"
    wrong.write_text("10.82.0.99 n1\n" + admin(sge, "cat", "/etc/hosts", host="n2"))
    known = "$SGE_BINARY_PATH/qrsh -inherit -nostdin n2 /bin/true; touch known; until [ -e go ]; do sleep 0.1; done"
    job = ScriptJob(sge, f"{known}\n{RUN} -- true\n", "-pe", "one", "2", "-notify")
    folder = job.run.path.parent
    job.until((folder / "known").exists, "the first qrsh")
    with mounted(sge, "n2", "--bind", sge.seen(wrong), "/etc/hosts"):
        (folder / "go").touch()
        ended(job, "FAILED", "host n2 could not connect back to qrsh on n1", "`getent hosts n1` on n2")
    no_process_left(sge)
    forget_addresses(sge, "n2")


# --- agents that do not start, and default timeouts


@pytest.mark.parametrize("whole", [False, True], ids=["sge_shepherd", "all of the job there"])
def test_job_killed_on_another_host_before_the_rendezvous(sge: Bed, whole: bool) -> None:
    """The kernel sends SIGHUP to the processes below: the reason must not blame that signal."""
    with late_agents(sge, "n3"):
        job = started(sge, "--env", "AGENT_DELAY=25", running=False)
        job.until(lambda: "n4" in hosts_of(job.run.latest()), "the agent on n4")
        if whole:
            admin(sge, "pkill", "-9", "-u", "alice", host="n4")  # in n4's own namespace of processes
        else:
            kill9(sge, "n4", shepherd(sge, "n4"))
        verdict = ended(job, "FAILED", "on host n4", "killed")
        assert "SIGHUP" not in verdict["reason"], verdict
    no_process_left(sge)


def test_agent_that_cannot_start_is_explained(sge: Bed) -> None:
    with mounted(sge, "n3", "--bind", "/dev/null", os.path.realpath(sys.executable)):
        job = started(sge, running=False)
        ended(job, "FAILED", "the agent on host n3", "Permission denied", "Python that runs gridtf")
    with mounted(sge, "n3", "-t", "tmpfs", "none", str(CHECKOUT / "gridtf/bootstrap")):
        job = started(sge, running=False)
        ended(job, "FAILED", "the agent on host n3", "No module named 'gridtf", "be installed where all hosts")
    job = started(sge, "--setup", "ulimit -n 16", nodes=2, running=False)
    ended(job, "FAILED", "open files are needed on host n1, but the limit is 16", "ulimit -n")
    no_process_left(sge)


def test_launcher_is_killed_while_it_ends_the_job_of_a_killed_task(sge: Bed) -> None:
    job = started(sge, "--kill-grace", "8", command=STUBBORN)
    kill9(sge, "n2", job.tasks()["worker:1"]["pid"])
    job.until(job.attempt.stop.exists, "the tear-down")
    kill9(sge, "n1", (read_record(job.attempt.launcher) or {})["pid"])
    first = "ended without a verdict: worker:1 on n2: killed by SIGKILL; then the launcher on n1 was killed"
    status_becomes(job, "FAILED", first)
    no_process_left(sge)


def test_default_timeouts_with_a_late_host_and_a_stopped_launcher(sge: Bed) -> None:
    with late_agents(sge, "n3"):
        late = started(sge, "--env", "AGENT_DELAY=45", command="true", running=False)
        stopped = started(sge, nodes=2)
        launcher = read_record(stopped.attempt.launcher) or {}
        admin(sge, "kill", "-STOP", str(launcher["pid"]), host=launcher["host"])
        reason = f"the launcher on host {launcher['host']} was stalled for"
        ended(stopped, "FAILED", reason, "stopped by a signal", seconds=240)
        ended(late, "COMPLETED", seconds=240)
    assert reason in stopped.status()["reason"]
    no_process_left(sge)
