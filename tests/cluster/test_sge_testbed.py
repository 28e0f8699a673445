"""scripts/testbed sge: what it promises, on a real cluster. What holds for all schedulers: test_slurm_testbed.py."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import CHECKOUT, Bed
from tests.support.footprints import footprint, left_by, processes_of, still_alive
from tests.support.jobs import until
from tests.support.sgebed import GridEngineBed

sys.path.append(str(CHECKOUT / "scripts"))
from testbeds import errors, packages, sge as sge_bed, sgeconf, sgedefaults, sgeroot  # noqa: I001

HOSTS = ("n1", "n2", "n3", "n4")


def qsub(bed: Bed, *options: str, script: str) -> list[str]:
    """Run a job to its end; returns the lines that it printed."""
    bed.run("login", "qsub", "-sync", "y", "-j", "y", "-o", "out", *options, stdin=script)
    output = bed.home() / "out"
    lines = output.read_text().splitlines()
    output.unlink()
    return lines


def test_commands_are_on_the_path_of_every_host(sge: Bed) -> None:
    script = 'echo "$SGE_ROOT $SGE_CELL $SGE_QMASTER_PORT $SGE_EXECD_PORT"; qstat; qhost -h $(hostname) | tail -1'
    tool = ["exec", "--user", "bob", "n2", "bash", "-c", script]
    words = sge.tool(*tool).stdout.split()
    assert words[:5] == ["/mnt/sge", "default", "6444", "6445", "n2"]


def test_sge_root_is_complete(sge: Bed) -> None:
    look = (
        "unset ${!SGE_*}; PATH=/bin; . /mnt/sge/default/common/settings.sh; type -p qsub;"
        " cat $SGE_ROOT/$SGE_CELL/common/act_qmaster; ls $SGE_ROOT/lib/$SGE_ARCH"
    )
    assert sge.run("login", "bash", "-c", look).stdout.split() == [
        "/mnt/sge/bin/lx-amd64/qsub",
        "ctl",
        "libdrmaa.so",
        "libdrmaa.so.1.0",
        "libspoolc.so",
    ]
    look = "source /mnt/sge/default/common/settings.csh; echo $DRMAA_LIBRARY_PATH"
    assert sge.run("login", "tcsh", "-fc", look).stdout == "/mnt/sge/lib/lx-amd64/libdrmaa.so\n"


@pytest.mark.parametrize(
    ("request_", "granted"),
    [
        (["rr", "8"], [(host, "2", "all.q") for host in HOSTS]),
        (["fill", "6"], [("n1", "4", "all.q"), ("n2", "2", "all.q")]),
        (["two", "4"], [("n1", "2", "all.q"), ("n2", "2", "all.q")]),
        (["smp", "3"], [("n1", "3", "all.q")]),
        (["rr", "2", "-q", "short.q", "-P", "ml"], [("n1", "1", "short.q"), ("n2", "1", "short.q")]),
        (
            ["rr", "16", "-q", "left.q,right.q"],
            [(host, "2", queue) for queue in ("left.q", "right.q") for host in HOSTS],
        ),
    ],
)
def test_allocations_and_tasks_on_other_hosts(sge: Bed, request_: list[str], granted: list[tuple[str, ...]]) -> None:
    script = (
        "cat $PE_HOSTFILE; for host in $(cut -d' ' -f1 $PE_HOSTFILE | sort -u | grep -v $HOSTNAME); do"
        " $SGE_BINARY_PATH/qrsh -inherit -nostdin $host 'echo $HOSTNAME has GPUs $GRIDTF_LOCAL_GPUS' & done; wait"
    )
    lines = qsub(sge, "-pe", *request_, script=script)
    hostfile, tasks = lines[: len(granted)], lines[len(granted) :]
    assert [tuple(re.split("[ @]", line)[:3]) for line in hostfile] == granted
    others = sorted({host for host, *_ in granted} - {"n1"})
    assert sorted(tasks) == [f"{host} has GPUs 0,1" for host in others]


def test_settings_of_a_site(sge: Bed) -> None:
    """A queue with csh, a PE without control_slaves, a PE without a queue, and GPUs that are counted."""
    assert qsub(sge, "-q", "csh.q", script="set x = here; echo $x $version:h\n")[-1].startswith("here tcsh")
    loose = qsub(sge, "-pe", "loose", "4", script="$SGE_BINARY_PATH/qrsh -inherit n2 true || :\n")
    assert 'execution daemon on host "n2" didn\'t accept task' in loose[0]
    no_queue = sge.run("login", "qsub", "-w", "e", "-pe", "idle", "2", "-b", "y", "true", check=False)
    assert "no suitable queues" in no_queue.stderr
    sge.run("login", "qsub", "-b", "y", "-pe", "two", "4", "-l", "gpu=1", "-o", "/dev/null", "-j", "y", "sleep", "60")
    until(lambda: _free_gpus(sge) == ["0", "0", "2", "2"], "four GPUs are taken")


def _free_gpus(bed: Bed) -> list[str]:
    return re.findall(r"hc:gpu=(\d)", bed.run("login", "qhost", "-F", "gpu").stdout)


def test_accounting_is_readable_by_users(sge: Bed) -> None:
    submit = ["qsub", "-terse", "-sync", "y", "-b", "y", "-j", "y", "-o", "/dev/null", "false"]
    done = sge.run("login", *submit, check=False)
    assert done.returncode == 1
    ask = ["qacct", "-j", done.stdout.split()[0]]
    until(lambda: sge.run("login", *ask, user="bob", check=False).returncode == 0, "qacct knows")
    assert re.search(r"exit_status +1\b", sge.run("login", *ask, user="bob").stdout)


def test_power_and_links_fail_and_are_mended(sge: Bed) -> None:
    """The mend command also waits for a host that was off too briefly for Grid Engine to notice."""
    script = "echo ready; exec sleep 1000"
    with sge.running("n4", script) as (without_power, _), sge.running("n3", script) as (without_link, _):
        sge.kill("n4")
        assert without_power.wait(timeout=180) == 128 + signal.SIGKILL
        sge.cut("n3")
        status = sge.tool("status").stdout
        assert re.search("^n4 +no power ", status, re.MULTILINE)
        assert re.search("^n3 +link cut ", status, re.MULTILINE)
        sge.mend("n4")
        sge.mend("n3")
        assert without_link.poll() is None
    assert set(sge.states().values()) == {"well"}
    for host in ("n3", "n4"):
        assert qsub(sge, "-q", f"all.q@{host}", script="hostname\n") == [host]


def test_host_with_a_dead_execd_is_mended(sge: Bed) -> None:
    sge.run("n2", "pkill", "-9", "sge_execd", user="root")
    until(lambda: "n2      no daemon" in sge.tool("status").stdout, "the dead daemon is noticed")
    sge.mend("n2")
    assert qsub(sge, "-q", "all.q@n2", script="hostname\n") == ["n2"]


def test_qmaster_keeps_its_jobs_over_a_power_cut(sge: Bed) -> None:
    """It takes half a minute, the interval in which an execd looks for a lost qmaster."""
    job = sge.run("login", "qsub", "-terse", "-h", "-b", "y", "true").stdout.strip()
    sge.kill("ctl")
    assert sge.run("login", "timeout", "1", "qstat", check=False).returncode == 124
    sge.mend("ctl")
    assert re.findall(r"^ +(\d+) ", sge.run("login", "qstat").stdout, re.MULTILINE) == [job]


def test_laggy_folder_shows_files_late(laggy_sge: Bed) -> None:
    ask = ("test", "-e", "news")
    assert laggy_sge.run("n1", *ask, check=False).returncode == 1
    (laggy_sge.home() / "news").touch()  # a job would take longer, on a busy machine, than a missing name is missed
    assert laggy_sge.run("n1", *ask, check=False).returncode == 1
    assert laggy_sge.run("n3", *ask).returncode == 0
    assert qsub(laggy_sge, "-q", "all.q@n2", script="touch others; hostname\n") == ["n2"]
    assert laggy_sge.run("n3", "test", "-e", "others").returncode == 0


def test_up_restarts_and_down_leaves_nothing(sge: Bed) -> None:
    """While another test bed is up, which is not affected; options change the cell."""
    before = footprint()
    options = ["all.q.slots=3", "n1.complex_values=slots=4,gpu=1"]
    with bed_for_tests(GridEngineBed, options=options) as bed:
        assert qsub(bed, "-pe", "smp", "3", "-l", "gpu=0", script="echo $NSLOTS\n") == ["3"]
        assert _free_gpus(bed) == ["1", "2", "2", "2"]
        submit = ["qsub", "-b", "y", "-o", "/dev/null", "-j", "y", "bash", "-c", "setsid sleep 1000 & sleep 1000"]
        bed.run("login", *submit)
        until(lambda: " r " in bed.run("login", "qstat").stdout, "the job runs")
        old = processes_of(bed)
        bed.up()
        assert not still_alive(old)
        assert bed.run("login", "qstat").stdout == ""
        assert qsub(bed, "-pe", "smp", "4", script="echo $JOB_ID\n") == ["1"]
        new = processes_of(bed)
        bed.down()
        assert not still_alive(new)
        assert not bed.state.exists()
        assert not left_by(bed, before)
    assert qsub(sge, script="hostname\n") == ["n1"]


@pytest.mark.root
def test_refusals_of_the_testbed_command(tmp_path: Path) -> None:
    """The first line says what is wrong, the second why or what to do."""
    bed = GridEngineBed(tmp_path)
    refused = bed.tool("up", "--cgroups", check=False)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "error: --cgroups is not for sge")
    refused = bed.tool("up", "--accounting", check=False)
    assert "qacct works without it" in refused.stderr
    refused = bed.tool("up", "--root", "/mnt", check=False)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "error: /mnt holds no Grid Engine for lx-amd64")
    refused = bed.tool("up", "--option", "all.q.colour=red", check=False)
    assert refused.stderr.startswith("error: --option all.q.colour: Grid Engine has no such attribute\n")
    assert not (tmp_path / "sge").exists()
    help_ = [sys.executable, str(bed.script), "sge", "up", "--help"]
    assert "accounting" not in subprocess.run(help_, capture_output=True, text=True, timeout=180).stdout


def test_options_change_their_file() -> None:
    text = sgeconf.files(["rr.slots=7", "max_unheard=0:1:0", "schedule_interval=0:0:9", "n2.complex_values=gpu=0"])
    assert re.search("(?m)^slots +7$", text["spool/pe/rr"])
    assert re.search("(?m)^max_unheard +0:1:0$", text["common/configuration"])
    assert re.search("(?m)^schedule_interval +0:0:9$", text["common/sched_configuration"])
    assert re.search("(?m)^complex_values +gpu=0$", text["spool/exec_hosts/n2"])
    with pytest.raises(errors.TestbedError, match=r"--option rr\.colour"):
        sgeconf.files(["rr.colour=red"])
    with pytest.raises(errors.TestbedError, match="there are: global, scheduler, rr"):
        sgeconf.files(["rrr.slots=1"])


def test_parse_queues_and_registrations() -> None:
    queue = "<Queue-List><name>{}</name><load_avg>0.1</load_avg>{}</Queue-List>"
    text = f"<job_info>{queue.format('all.q@n1', '')}{queue.format('all.q@n2', '<state>au</state>')}</job_info>"
    assert sge_bed.usable(text) == {"all.q@n1": True, "all.q@n2": False}
    messages = (
        "01/01/1970 00:00:05|worker|ctl|I|execd on n1 registered\n"
        "01/01/1970 00:01:00|  main|ctl|W|something else\n"
        "01/01/1970 00:01:40|worker|ctl|I|execd on n1 registered\n"
        "1970-01-01 00:01:40.500123|worker|ctl|I|execd on n2 registered\n"  # Open Cluster Scheduler
    )
    assert sge_bed.registered(messages) == {"n1": 100, "n2": 100}


RECORDED = CHECKOUT / "tests/recorded/grid-engine"


def made(home: Path, *, arch: str = "lx-amd64", qmaster: bytes = b"#!/bin/sh\nexit 1\n") -> Path:
    """The files of a Grid Engine, as far as the test bed looks at them."""
    for name in (f"bin/{arch}", f"utilbin/{arch}", f"lib/{arch}", "util/resources/centry"):
        (home / name).mkdir(parents=True)
    for name in ("sge_qmaster", "sge_execd"):
        (home / "bin" / arch / name).write_bytes(qmaster)
        (home / "bin" / arch / name).chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("engine", "more"),
    [
        ("ocs-9.1.4", {"ign_sreq_on_mhost", "master_forks_slaves", "daemon_forks_slaves"}),
        ("daimh-8.1.10", {"enable_cpuquota", "qsort_args"}),
    ],
)
def test_attributes_of_parallel_environments_are_those_of_the_installation(
    engine: str, more: set[str], tmp_path: Path
) -> None:
    folder = made(tmp_path / "root") / "util/resources/pe"
    folder.mkdir()
    (folder / "make").write_text("# Version: 8\n#\n" + (RECORDED / engine / "qconf-sp-rrs.txt").read_text())
    text = sgeconf.files((), sgeroot.engine(str(tmp_path / "root")))["spool/pe/smp"]
    found = dict(line.split(None, 1) for line in text.splitlines())
    assert set(found) - (set(sgedefaults.ENVIRONMENT) - {"qsort_args"}) == {"pe_name", *more}
    assert (found["pe_name"], found["allocation_rule"], found["slots"]) == ("smp", "$pe_slots", "999")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (b"gid_range\0", set()),
        (b"xmail_tag\0binding_params\0jsv_url\0", {"mail_tag", "binding_params"}),
    ],
)
def test_attributes_of_the_cluster_are_those_that_the_qmaster_names(
    names: bytes, expected: set[str], tmp_path: Path
) -> None:
    found = sgeroot.engine(str(made(tmp_path / "root", qmaster=b"\x7fELF\0" + names)))
    assert set(found.cluster) == expected
    assert found.environment == sgedefaults.ENVIRONMENT  # there is no example
    assert expected <= set(re.findall(r"(?m)^\w+", sgeconf.files((), found)["common/configuration"]))


FOREIGN = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\xb7\0" + bytes(44)  # of another processor


def test_root_that_is_no_usable_installation_is_refused(tmp_path: Path) -> None:
    """One error: what is wrong with the folder, why, and what to give instead."""

    def refused(home: Path) -> tuple[str, str]:
        with pytest.raises(errors.TestbedError) as caught:
            sgeroot.need(str(home))
        what, why, hint = caught.value.lines
        assert str(home) in what
        assert "\n" not in what + why + hint
        return what.replace(str(home), "DIR"), why

    (tmp_path / "empty").mkdir()
    none = "DIR holds no Grid Engine for lx-amd64"
    assert refused(tmp_path / "empty") == (none, "there is no bin/lx-amd64/sge_qmaster")
    other = made(tmp_path / "other", arch="lx-arm64")
    assert refused(other) == (none, "there is no bin/lx-amd64/sge_qmaster, but programs for lx-arm64")
    halved = made(tmp_path / "halved")
    (halved / "util/resources/centry").rmdir()
    assert refused(halved) == (none, "there is no util/resources/centry")
    foreign = made(tmp_path / "foreign", qmaster=FOREIGN)
    assert refused(foreign) == ("the Grid Engine in DIR does not run on this machine", "sge_qmaster: Exec format error")
    closed = made(tmp_path / "closed")
    sgeroot.need(str(closed))
    (closed / "lib").chmod(0o750)
    assert refused(closed) == ("DIR/lib cannot be shared", "plain users may not enter it")


def test_packages_are_preseeded_before_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only missing packages, and before they are installed."""
    for name, code in {"apt-get": 0, "debconf-set-selections": 0}.items():
        (tmp_path / name).write_text(
            f'#!/bin/sh\n(echo {name}; [ {name} = apt-get ] || cat) >>"{tmp_path}/calls"; exit {code}'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    packages.need({"/no/such/file": "one", "sh": "two"}, lambda line: None, ["one one/make boolean false", "two x y z"])
    assert (tmp_path / "calls").read_text() == "debconf-set-selections\none one/make boolean false\napt-get\n"
