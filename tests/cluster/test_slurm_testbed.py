"""scripts/testbed with a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import CHECKOUT, HOSTS, Bed
from tests.support.footprints import footprint, left_by, processes_of, still_alive
from tests.support.jobs import until

GPU_HOSTS = ("n1", "n2", "n3", "n4")


sys.path.append(str(CHECKOUT / "scripts"))
from testbeds import enter, errors, packages, slurm as slurm_bed, slurmconf, view  # noqa: E402, I001


def executed(bed: Bed, host: str, *argv: str, stdin: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command on a host by the tool itself."""
    command = bed.command(host, *argv, **more)
    return subprocess.run(command, env=bed.environ(), input=stdin, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize("run", [executed, Bed.run], ids=["the tool", "tests"])
def test_exec_runs_a_command_as_on_the_host_itself(slurm: Bed, run: Callable[..., Any]) -> None:
    script = (
        'read line; echo "$line|$(hostname)|$(id -un)|$HOME|$PWD|$USER|$LANG|$SLURM_CONF|$X"; echo oops >&2; exit 7'
    )
    options = {"check": False} if run is Bed.run else {}
    done = run(slurm, "n2", "bash", "-c", script, stdin="hello  you\n", env={"X": 'a "b"\n$c'}, **options)
    home = "/mnt/shared/home/alice"
    assert done.stdout == f'hello  you|n2|alice|{home}|{home}|alice|C.UTF-8|/etc/slurm/slurm.conf|a "b"\n$c\n'
    assert done.stderr == "oops\n"
    assert done.returncode == 7


def test_exec_exit_codes(slurm: Bed) -> None:
    assert executed(slurm, "n1", "bash", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
    assert slurm.run("n1", "bash", "-c", "kill -9 $$", check=False).returncode == 128 + signal.SIGKILL
    missing = executed(slurm, "n1", "no-such-command")
    assert missing.returncode == 127
    assert "no-such-command: no such command on this host" in missing.stderr
    assert executed(slurm, "n1", "/etc/passwd").returncode == 126


def test_exec_forwards_signals(slurm: Bed) -> None:
    trap = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    with slurm.running("login", trap) as (process, _):
        process.terminate()
        assert process.communicate(timeout=180)[0] == "got it\n"
        assert process.returncode == 3


def test_exec_ends_the_command_when_the_tool_ends(slurm: Bed) -> None:
    with slurm.running("login", "echo $$; exec sleep 1000") as (_, pid):
        pass
    until(lambda: slurm.run("login", "kill", "-0", pid, check=False).returncode, "the process of the host is gone")


def test_users_have_no_access_to_each_other_s_files(slurm: Bed) -> None:
    slurm.run("login", "bash", "-c", "umask 077; echo secret >mine")
    other = slurm.run("n1", "cat", "/mnt/shared/home/alice/mine", user="bob", check=False)
    assert "Permission denied" in other.stderr
    assert slurm.run("n1", "cat", "/mnt/shared/home/alice/mine").stdout == "secret\n"
    assert slurm.run("n1", "id", "-u", user="root").stdout == "0\n"
    assert "/mnt/shared/home" not in Path("/etc/passwd").read_text()


def test_hosts_have_their_own_temporary_folders_and_share_one(slurm: Bed) -> None:
    name = f"mark-{os.getpid()}"
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/mnt/shared/home/alice"):
        slurm.run("n1", "touch", f"{folder}/{name}")
    look = f"ls -d {{/tmp,/var/tmp,/dev/shm,/mnt/shared/home/alice}}/{name} 2>/dev/null || :"
    assert slurm.run("n2", "bash", "-c", look).stdout.split() == [f"/mnt/shared/home/alice/{name}"]
    assert not [folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if Path(folder, name).exists()]
    assert (slurm.home() / name).stat().st_uid == 7001
    assert slurm.seen(slurm.home() / name) == f"/mnt/shared/home/alice/{name}"


def test_hosts_have_the_checkout_and_this_python_but_no_network(slurm: Bed) -> None:
    code = "import sys, socket, gridtf; print(gridtf.__file__, [name for _, name in socket.if_nameindex()])"
    seen = slurm.run("c1", sys.executable, "-c", code, user="bob", cwd=str(CHECKOUT)).stdout
    assert seen == f"{CHECKOUT}/gridtf/__init__.py ['lo', 'eth0']\n"
    assert (
        slurm.run("c1", "cat", "/proc/net/route").stdout.count("\n") == 2
    )  # the heading and the cluster's own network


def test_srun_tasks_run_on_all_hosts_with_their_own_gpus(slurm: Bed) -> None:
    script = "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    step = ["srun", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1", "bash", "-c", script]
    assert sorted(slurm.run("login", *step).stdout.splitlines()) == [
        f"{host} {gpu}" for host in GPU_HOSTS for gpu in (0, 1)
    ]
    step = ["srun", "-p", "cpu", "bash", "-c", script]
    assert slurm.run("login", *step, user="bob").stdout == "c1\n"


def test_partitions(slurm: Bed) -> None:
    shown = slurm.run("login", "sinfo", "-h", "-o", "%P %D %l %G").stdout.splitlines()
    assert [line.replace("gpu:4(S:0)", "gpu:4") for line in shown] == [
        "gpu* 4 7-00:00:00 gpu:4",
        "cpu 1 7-00:00:00 (null)",
        "short 4 30:00 gpu:4",
        "scavenge 4 7-00:00:00 gpu:4",
    ]


def test_kill_and_cut_hosts_and_mend_them(slurm: Bed) -> None:
    """Slurm notices both. Processes of a host without power have ended, those of a host without a link live on."""
    script = "echo ready; exec sleep 1000"
    with slurm.running("n4", script) as (without_power, _), slurm.running("n3", script) as (without_link, _):
        slurm.kill("n4")
        slurm.cut("n3")
        assert without_power.wait(20) == 128 + signal.SIGKILL
        refused = slurm.run("n4", "true", check=False)
        assert (refused.returncode, refused.stderr.splitlines()[0]) == (255, "error: host n4 has no power")
        shown = slurm.tool("status").stdout
        assert re.search("^n4 +no power", shown, re.MULTILINE)
        assert re.search("^n3 +link cut", shown, re.MULTILINE)
        slurm.await_state("n4", "down")
        slurm.await_state("n3", "down")
        assert without_link.poll() is None
    slurm.mend("n4")
    slurm.mend("n3")
    assert set(slurm.run("login", "srun", "-N4", "hostname").stdout.split()) == set(GPU_HOSTS)


def test_bridge_keeps_its_address_when_a_host_goes(slurm: Bed) -> None:
    """Of itself it would take that of a link: hosts would look for the hub where it was for most of a minute."""
    hub = json.loads((slurm.state / "slurm/bed.json").read_text())["hosts"]["hub"]["pid"]
    look = ["nsenter", f"--target={hub}", "--net", "ip", "-o", "link"]
    shown = subprocess.run(look, capture_output=True, text=True, timeout=180, check=True).stdout
    addresses = dict(re.findall(r"^\d+: ([\w-]+)[@:].* link/ether (\S+)", shown, re.MULTILINE))
    own = addresses.pop("bridge0")
    assert len(addresses) == len(HOSTS)
    assert own not in addresses.values()


def test_mend_host_before_slurm_has_noticed(slurm: Bed) -> None:
    slurm.kill("n1")
    slurm.mend("n1")
    assert slurm.run("login", "srun", "-w", "n1", "hostname").stdout == "n1\n"


def test_mend_host_with_a_dead_daemon(slurm: Bed) -> None:
    slurm.run("n2", "pkill", "-9", "slurmd", user="root")
    until(lambda: "n2      no daemon" in slurm.tool("status").stdout, "the dead daemon is noticed")
    slurm.mend("n2")
    assert slurm.run("login", "srun", "-w", "n2", "hostname").stdout == "n2\n"


def test_mended_controller_still_has_its_jobs(slurm: Bed) -> None:
    job = slurm.run("login", "sbatch", "--parsable", "--hold", "--wrap", "true").stdout.strip()
    slurm.run("ctl", "scontrol", "shutdown", "slurmctld", user="root")  # orderly: Slurm saves its state with a delay
    until(lambda: "ctl     no daemon" in slurm.tool("status").stdout, "slurmctld has ended")
    slurm.kill("ctl")
    assert slurm.run("login", "timeout", "1", "squeue", check=False).returncode == 124
    slurm.mend("ctl")
    assert slurm.run("login", "squeue", "-h", "-o", "%i").stdout.split() == [job]


def test_laggy_folder_caches_missing_names(laggy_slurm: Bed) -> None:
    """A host that has not found a name does not find it for seconds after it was created; a listing shows it."""
    exists = ("test", "-e", "news")
    assert laggy_slurm.run("n1", *exists, check=False).returncode == 1
    laggy_slurm.run("n2", "touch", "news")
    assert laggy_slurm.run("n1", *exists, check=False).returncode == 1
    assert laggy_slurm.run("n3", *exists).returncode == 0
    assert "news" in laggy_slurm.run("n1", "ls").stdout.splitlines()
    assert (laggy_slurm.home() / "news").stat().st_uid == 7001
    laggy_slurm.run("login", "srun", "-N2", "touch", "news")


def test_constrained_devices() -> None:
    """With control groups a task may open its own GPU only, which fails for want of a driver, not of permission."""
    before = footprint()
    try:
        with bed_for_tests(cgroups=True) as bed:
            look = "echo $(cat /run/testbed/gpu[0-3] 2>&1 | grep -c permitted) $CUDA_VISIBLE_DEVICES"
            step = ["srun", "-n2", "--gpus-per-task=1", "bash", "-c", look]
            assert bed.run("login", *step).stdout.splitlines() == ["3 0"] * 2
            assert left_by(bed, before)
    except AssertionError as error:
        if Path("/sys/fs/cgroup/devices").exists():
            raise
        assert "no control groups of version 1 here" in str(error)
    else:
        assert not left_by(bed, before)


def test_accounting() -> None:
    with bed_for_tests(accounting=True) as bed:
        job = bed.run("login", "sbatch", "--parsable", "--wait", "--wrap", "exit 3", check=False).stdout.strip()
        sacct = ["sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode"]
        until(lambda: f"{job}|FAILED|3:0\n" == bed.run("login", *sacct).stdout, "slurmdbd knows how the job ended")


@pytest.mark.root
def test_jobs_do_not_inherit_ignored_signals_of_the_caller(tmp_path: Path) -> None:
    """A caller ignores signals under nohup, or in the background of a shell."""
    bed = Bed(tmp_path / "state")
    up = "trap '' INT HUP TERM; exec \"$@\""
    environ = {"PATH": "/usr/bin:/bin", "GRIDTF_TESTBED_STATE": str(bed.state)}
    try:
        tool = ["bash", "-c", up, "up", sys.executable, str(bed.script), "slurm"]
        subprocess.run([*tool, "up", "--quiet"], env=environ, check=True, timeout=240)
        look = ["grep", "SigIgn", "/proc/self/status"]
        assert bed.run("login", "srun", *look).stdout.split() == ["SigIgn:", "0" * 16]
        direct = subprocess.run([*tool, "exec", "n1", *look], env=environ, capture_output=True, text=True, timeout=180)
        assert direct.stdout.split() == ["SigIgn:", "0" * 16]
    finally:
        bed.down()


def test_up_again_is_a_clean_restart_and_down_leaves_nothing(slurm: Bed, tmp_path: Path) -> None:
    """Another test bed is up all the time, and the two do not affect each other."""
    before = footprint()
    (slurm.home() / "of-the-other").touch()
    with bed_for_tests(shared="laggy", options=["MinJobAge=7"]) as bed:
        assert slurm.run("login", "true").returncode == bed.run("login", "true").returncode == 0
        assert bed.run("login", "ls").stdout == ""
        assert re.search(r"MinJobAge += 7 sec", bed.run("login", "scontrol", "show", "config").stdout)
        first = bed.run("login", "sbatch", "--parsable", "--wrap", "setsid sleep 1000 & sleep 1000").stdout
        old = processes_of(bed)
        assert len(old) > len(HOSTS)
        bed.up()
        assert not still_alive(old)
        assert bed.run("login", "squeue", "-h").stdout == ""
        assert bed.run("login", "sbatch", "--parsable", "--wrap", "setsid sleep 1000 & sleep 1000").stdout == first
        bed.await_state("n1", "mixed")
        new = processes_of(bed)
        bed.down()
        assert not still_alive(new)
        assert not bed.state.exists()
        assert not left_by(bed, before)
        bed.down()
    assert slurm.run("login", "srun", "hostname").stdout == "n1\n"


@pytest.mark.root
def test_failed_up_reports_why_and_leaves_nothing(tmp_path: Path) -> None:
    bed = Bed(tmp_path / "state")
    before = footprint()
    failed = bed.tool("up", "--option", "SchedulerType=sched/nonsense", check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ctl: a daemon has ended: slurmctld, exit code 1\n")
    assert "for sched/nonsense" in failed.stderr
    assert not bed.state.exists()
    assert not left_by(bed, before)


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_interrupted_up(tmp_path: Path, number: signal.Signals) -> None:
    """After TERM it leaves nothing; after KILL it leaves what the next down or up removes."""
    bed = Bed(tmp_path / "state")
    before = footprint()
    record = bed.state / "slurm/bed.json"
    up = [sys.executable, str(bed.script), "slurm", "up"]
    environ = {"PATH": "/usr/bin:/bin", "GRIDTF_TESTBED_STATE": str(bed.state)}
    with subprocess.Popen(up, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: record.exists() and record.read_text().count('"pid"') > 3, "some hosts are there")
        known = processes_of(bed)
        process.send_signal(number)
        process.communicate(timeout=180)  # no host holds its pipes
        assert process.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL)
    if number == signal.SIGKILL:
        bed.down()
    assert not still_alive(known)
    assert not bed.state.exists()
    assert not left_by(bed, before)


@pytest.mark.root
def test_path_with_special_characters(rough_path: Path) -> None:
    """The tool, its state and a shared folder are in a hidden folder whose name breaks careless quoting."""
    shutil.copytree(CHECKOUT / "scripts", rough_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    (rough_path / "data, more").mkdir()
    bed = Bed(rough_path / "state", script=rough_path / "scripts/testbed")
    try:
        bed.up(shared="laggy", share=[rough_path / "data, more"])
        command = bed.command("n1", "ls", str(rough_path))
        command = command[: command.index("--cwd")] + command[command.index("--cwd") + 2 :]
        environ = {"PATH": "/usr/bin:/bin", "GRIDTF_TESTBED_STATE": str(bed.state)}
        here = subprocess.run(
            [*command[:-2], "pwd"], cwd=rough_path / "scripts", env=environ, capture_output=True, text=True
        )
        assert here.stdout == f"{rough_path}/scripts\n", here.stderr
        listed = bed.run("n1", "ls", str(rough_path)).stdout
        assert listed == "data, more\nscripts\nstate\n"
        assert bed.run("login", "srun", "-N4", "hostname").returncode == 0
    finally:
        bed.down()


def test_errors_have_one_line_and_a_hint(slurm: Bed, tmp_path: Path) -> None:
    tool = [sys.executable, str(CHECKOUT / "scripts/testbed"), "slurm"]
    plain = slurm.run("login", *tool, "up", check=False)
    assert (plain.returncode, plain.stdout) == (2, "")
    assert plain.stderr == f"error: {tool[1]} needs root, to make hosts of namespaces\n       run it with sudo\n"
    unknown = slurm.tool("kill", "n9", check=False)
    assert unknown.stderr == f"error: no host n9\n       there are: {', '.join(HOSTS)}\n"
    nothing = Bed(tmp_path).tool("exec", "n1", "true", check=False)
    assert nothing.stderr == "error: no slurm test bed is up\n       bring one up: scripts/testbed slurm up\n"
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/thesis.txt").touch()
    foreign = Bed(tmp_path).tool("down", check=False)
    assert "is not the folder of a test bed" in foreign.stderr
    assert (tmp_path / "slurm/thesis.txt").exists()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    refused = Bed(tmp_path / "x").tool("up", f"--share={closed}", check=False)
    assert refused.stderr.splitlines()[0] == f"error: {closed} cannot be shared"
    assert refused.stderr.splitlines()[-1].strip() == f"chmod -R o+rX {closed} lets them in"


@pytest.mark.parametrize("verb", ["--help", "up --help", "exec --help"])
def test_help_of_the_tool(verb: str) -> None:
    tool = [sys.executable, str(CHECKOUT / "scripts/testbed"), "slurm", *verb.split()]
    assert subprocess.run(tool, capture_output=True, text=True, timeout=180).stdout.startswith(
        "usage: scripts/testbed slurm"
    )


def test_hidden_folders_of_a_host() -> None:
    closed = {"/srv", "/srv/a", "/home/eve"}
    hidden = view.hidden(["/srv/a/b", "/tmp/x", "/home/eve/src", "/opt/y"], lambda folder: str(folder) not in closed)
    assert hidden == [*view.OWN, "/srv", "/home/eve"]


def test_parse_nodes_of_scontrol() -> None:
    text = (
        "NodeName=n1 Arch=x86_64 State=IDLE+COMPLETING Comment=a=b SlurmdStartTime=1970-01-01T00:01:40\n"
        "NodeName=n2 State=DOWN*+NOT_RESPONDING SlurmdStartTime=None Reason=Not responding [root@2026-01-01T00:00:00]\n"
    )
    nodes = slurm_bed.nodes(text)
    assert nodes == {"n1": slurm_bed.Node("IDLE+COMPLETING", 100), "n2": slurm_bed.Node("DOWN*+NOT_RESPONDING", 0)}
    assert [nodes["n1"].well, nodes["n2"].well] == [True, False]
    assert not slurm_bed.Node("IDLE*", 1).well
    assert not slurm_bed.Node("IDLE+DRAIN", 1).well


def test_options_override_lines_of_slurm_conf() -> None:
    options = ["minjobage=5", "MinJobAge=6", "Epilog=/bin/true", "PartitionName=extra Nodes=c1"]
    text = slurmconf.files(cgroups=False, extra={}, options=options)["slurm.conf"]
    assert re.findall("(?im)^minjobage=.*", text) == ["MinJobAge=6"]
    assert "\nEpilog=/bin/true\n" in text
    assert text.count("\nPartitionName=") == 5


def test_packages_are_installed_without_starting_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """apt-get is run again while another process holds the lock; a failure is reported with its message."""
    fake = f"""#!/bin/sh
        cd '{tmp_path}'; echo "$4 $(stat -c %a policy)" >>calls
        [ -e busy ] || {{ touch busy; echo "E: Could not get lock /var/lib/dpkg/lock" >&2; exit 100; }}
        echo "E: Unable to locate package" >&2; exit 100"""
    (tmp_path / "apt-get").write_text(fake)
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    with pytest.raises(errors.TestbedError, match="cannot be installed: one, two") as failed:
        packages.need({"sh": "dash", "no-such-command": "two one"}, lambda line: None)
    assert "E: Unable to locate package" in str(failed.value)
    assert (tmp_path / "calls").read_text().split("755")[:-1] == ["install ", "\ninstall ", "\nupdate ", "\ninstall "]
    assert not (tmp_path / "policy").exists()


def test_two_at_once_install_packages_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the first has installed, the second need not; and an apt-get of others may hold debconf's lock."""
    scripts = {
        "debconf-set-selections": """[ -e free ] || {
            touch free; echo 'debconf: DbDriver "config": config.dat is locked by another process' >&2; exit 1; }
            cat >>calls""",
        # it ends when the other one waits, and after half a minute in any case
        "apt-get": """echo "$4 $6" >>calls
            for _ in $(seq 300); do [ -e waits ] && break; sleep 0.1; done; [ -e policy ] && touch thing""",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd '{tmp_path}'; {text}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("waiting"):
            (tmp_path / "waits").touch()

    def need() -> None:
        packages.need({str(tmp_path / "thing"): "one"}, say, ["one one/make boolean false"])

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(need) for _ in range(2)]:
            done.result(timeout=120)
    assert (tmp_path / "calls").read_text() == "one one/make boolean false\ninstall --no-install-recommends\n"
    assert sorted(said) == ["installing one", "waiting for another scripts/testbed that installs packages"]
    assert not (tmp_path / "policy").exists()


def test_search_path_of_a_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(enter, "_CHECKOUT", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv-test/bin").mkdir(parents=True)
    own, test = f"{tmp_path}/.venv/bin", f"{tmp_path}/.venv-test/bin"
    assert enter.search_path({"PATH": "/bin"}) == f"{own}:{test}:/bin"
    assert enter.search_path({"PATH": "/bin", "VIRTUAL_ENV": "/v"}) == f"/bin:{own}:{test}"
    assert enter.search_path({"PATH": f"{test}:/bin"}) == f"{test}:/bin:{own}"
