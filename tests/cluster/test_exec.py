"""gridtf exec and gridtf shell from the login host: a command beside a task on another host than the launcher's."""

from __future__ import annotations

import json
import random
import subprocess

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterfaults import GRIDTF_ENVIRON, begun, no_process_left, started
from tests.support.clusterjobs import GRIDTF, ClusterJob, gridtf
from tests.support.packages import need_program
from tests.support.terminals import Terminal
from tests.support.traps import ISOLATED, Traps


def beside(job: ClusterJob, task: str, *command: str, check: bool = True) -> tuple[int, str, str]:
    done = job.gridtf("exec", task, "--", *command, check=check)
    return done.returncode, done.stdout, done.stderr


def terminal_on(bed: Bed, job: ClusterJob, task: str) -> Terminal:
    """A terminal on the login host, with a shell beside a task."""
    argv = bed.command("login", *GRIDTF, "shell", job.seen_as, task, env={**GRIDTF_ENVIRON, "TERM": "xterm"})
    return Terminal(argv, bed.environ(), lines=33, columns=99)


@on_every_scheduler
def test_command_runs_on_the_host_of_its_task_within_the_job(bed: Bed) -> None:
    job = started(bed, nodes=3, name="beside")
    task = job.tasks()["worker:2"]
    environ = f"tr '\\0' '\\n' < /proc/{task['pid']}/environ"
    script = f"""
        wanted() {{ grep -e ^SLURM_JOB_ID= -e ^JOB_ID= -e ^CUDA_VISIBLE_DEVICES= | sort; }}
        hostname; echo "$TF_CONFIG"; id -un; pwd
        cmp /proc/self/cgroup /proc/{task["pid"]}/cgroup && echo in its group
        [ "$({environ} | wanted)" = "$(env | wanted)" ] && echo with its variables
        exit 5"""
    code, out, err = beside(job, "worker:2", "bash", "-c", script, check=False)
    host, config, user, folder, *rest = out.splitlines()
    assert (code, err) == (5, "")
    assert host.partition(".")[0] == task["host"].partition(".")[0]
    assert json.loads(config)["task"] == {"type": "worker", "index": 2}
    assert len(json.loads(config)["cluster"]["worker"]) == 3
    assert (user, folder) == ("alice", bed.seen(bed.home()))
    assert rest == ["in its group", "with its variables"]
    seen = job.until(
        lambda: (text := job.attempt.events.read_text()).count('"event":"exec') == 2 and text, "two events"
    )
    assert f'"host":"{task["host"]}","user":"alice","text":"bash -c ' in seen
    assert '"exit":5' in seen
    done = gridtf(bed, "exec", job.seen_as, "worker:2", "--", "true", user="bob", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "belongs to user alice" in done.stderr
    done = gridtf(bed, "exec", job.seen_as, "worker:2", "--", "id", "-un", user="root")
    assert done.stdout == "alice\n"
    job.gridtf("cancel")
    assert job.verdict()["state"] == "CANCELLED"
    assert not [path.name for path in job.attempt.path.iterdir() if path.name.startswith("exec-")]
    no_process_left(bed)


@on_every_scheduler
def test_shell_on_another_host_ends_with_the_job(bed: Bed) -> None:
    job = started(bed, nodes=2, name="shell")
    host = job.tasks()["worker:1"]["host"]
    with terminal_on(bed, job, "worker:1") as terminal:
        terminal.type("trap '' HUP TERM; setsid sleep 300 & stty size; echo a''t $(hostname) $GRIDTF_TASK_INDEX\r")
        terminal.until("33 99\r\n")
        terminal.until(f"at {host.partition('.')[0]}")
        terminal.resize(44, 132)
        terminal.type("until [ \"$(stty size)\" = '44 132' ]; do sleep 0.1; done; echo resi''zed\r")
        terminal.until("resized")
        # it says so itself: a shell that has not started the next program yet may not pass Ctrl-C on to it
        terminal.type("bash -c \"echo sl''eeping; exec sleep 300\"\r")
        terminal.until("sleeping")
        terminal.type("\x03")
        terminal.until("^C")
        terminal.until("$ ")
        terminal.type("echo inter''rupted\r")
        terminal.until("interrupted")
        job.gridtf("cancel")
        terminal.until(f"gridtf: the connection with worker:1 on host {host} has ended")
        assert terminal.process.wait(120) == 1
    assert job.verdict()["state"] == "CANCELLED"
    no_process_left(bed)


def test_host_that_is_lost_ends_the_command(slurm: Bed) -> None:
    job = started(slurm, nodes=2, name="lost")
    host = job.tasks()["worker:1"]["host"]
    with begun(job, "exec", "worker:1", "--", "bash", "-c", "echo up; exec sleep 300") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        slurm.kill(host)
        try:
            out, err = process.communicate(timeout=180)
            assert (process.returncode, out) == (1, "")
            assert err.startswith(f"gridtf: the connection with worker:1 on host {host} has ended\n")
            job.verdict()
        finally:
            slurm.mend(host)
    no_process_left(slurm)


def test_connection_goes_through_srun_where_a_firewall_lets_no_other_through(slurm: Bed) -> None:
    job, nft = started(slurm, nodes=2, name="detour"), need_program("nft", "nftables")
    host = job.tasks()["worker:1"]["host"]
    (login,) = slurm.run("login", "hostname", "-I").stdout.split()
    rule = f"ip saddr {login} tcp dport 32768-60999 tcp flags & (syn | ack) == syn drop"
    table = "table ip detour {\n chain input {\n type filter hook input priority 0;\n " + rule + "\n }\n}\n"
    slurm.run(host, nft, "-f", "-", user="root", stdin=table)
    try:
        script = 'echo "$(hostname) $GRIDTF_TASK_INDEX" >&2; cat; exit 5'
        argv = slurm.command("login", *GRIDTF, "exec", "-i", job.seen_as, "worker:1", "--", "bash", "-c", script)
        data = random.Random(1).randbytes(3_000_000)
        done = subprocess.run(argv, input=data, env=slurm.environ(), capture_output=True, timeout=180, check=False)
        assert (done.returncode, done.stderr.decode()) == (5, f"{host} 1\n")
        assert done.stdout == data
        # what copies there is a Python, in the current folder of the user; of root, for jobs of root
        traps = Traps(slurm.home() / "detour", slurm.home() / "trapped", slurm.seen(slurm.home() / "trapped"))
        (slurm.shared / "root").mkdir(0o700)
        of_root = slurm.seen(slurm.shared / "root")
        options = ("--nodes", "1", "--nodelist", host, "--run-root", of_root, "--chdir", of_root)
        root = ClusterJob(slurm, *slurm.options, *options, "--tasks-per-node", "1", "--", "sleep", "300", user="root")
        root.running(1)
        for each, task in ((job, "worker:1"), (root, "worker:0")):
            words = (*ISOLATED, "exec", each.seen_as, task, "--", "hostname")
            answer = slurm.run("login", *words, user=each.user, cwd=slurm.seen(traps.folder), check=False)
            assert (answer.stdout, answer.stderr, traps.ran) == (f"{host}\n", "", [])
        root.gridtf("cancel")
        with terminal_on(slurm, job, "worker:1") as terminal:
            terminal.type("echo at $(hostname); stty size\r")
            terminal.until(f"at {host}\r\n33 99")
            terminal.type("exit 3\r")
            assert terminal.process.wait(120) == 3
    finally:
        slurm.run(host, nft, "delete", "table", "ip", "detour", user="root")
    job.gridtf("cancel")
    assert job.verdict()["state"] == "CANCELLED"
    no_process_left(slurm)
