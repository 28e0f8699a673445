"""Judging what the hosts of a probe have measured: every fault has one finding, which says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gridtf.doctor.judge import Ending, Measurements, Probe, judge, judge_end, local_end
from gridtf.findings import Finding, Level, Setting
from gridtf.jobspec.spec import JobSpec
from gridtf.run.recordtypes import check
from gridtf.run.rundir import Record

PROBE = Probe("slurm", 2, ("n1", "n2"), (0, 0), "/shared/runs", (1000.0, 1010.0))


def peer(number: int, **changes: Any) -> Record:
    """What a host has measured of host NUMBER."""
    links = {f"eth{net}": {"address": f"10.0.{net}.{number}", "error": ""} for net in (0, 1)}
    links["docker0"] = {"address": "172.17.0.1", "error": "Connection refused"}
    return {
        "host": f"n{number}",
        "port": 40000 + number,
        "seen": True,
        "unresolved": "",
        "resolving": 0.001,
        "resolved": [f"10.0.0.{number}"],
        "by_name": "",
        "links": links,
        "ahead": 120,
        "doubt": 90,
        "delay": 0.02,
        **changes,
    }


def host(number: int, **changes: Any) -> Record:
    """The measurements of n1 or n2, where all is well."""
    return {
        "index": number - 1,
        "hostname": f"n{number}",
        "time": 1008.5,
        "interfaces": [{"name": "eth0", "up": True, "address": f"10.0.0.{number}"}],
        "variables": {},
        "devices": [],
        "proxies": [],
        "limits": {"nofile": 4096, "nproc": -1, "memlock": 65536, "as": -1, "stack": 8 << 20, "core": 0},
        "infiniband": False,
        "ports": "32768-60999",
        "cpus": [4, 64],
        "programs": [],
        "ptrace": {"error": "", "scope": "1"},
        "python": {"path": "/env/bin/python", "version": "3.11.2", "tensorflow": "2.21.0"},
        "peers": {str(2 - number): peer(3 - number)},
        **changes,
    }


def only(found: tuple[Finding, ...]) -> Finding:
    """The only finding that is not ok."""
    (one,) = (finding for finding in found if finding.level != Level.OK)
    assert one.hint
    return one


def seen_by_n1(**changes: Any) -> list[Record]:
    return [host(1, peers={"1": peer(2, **changes)}), host(2)]


def on_n2(**changes: Any) -> list[Record]:
    return [host(1), host(2, **changes)]


def closed(*links: str) -> Record:
    return {name: {**link, "error": "no answer"} if name in links else link for name, link in peer(2)["links"].items()}


def test_measurements_of_a_site_in_order_have_no_fault() -> None:
    measured = [host(1), host(2)]
    assert [check(Measurements)(record) for record in measured] == ["", ""]
    judged = judge(PROBE, measured)
    assert {finding.level for finding in judged.findings} == {Level.OK}
    assert not judged.settings
    text = {finding.check: finding.message for finding in judged.findings}
    assert text["network.tcp"].endswith("over the interfaces eth0, eth1; not over docker0")
    assert text["clock.offset"] == "the clocks of the hosts agree to within 0.2 ms"
    assert text["python.tensorflow"] == "TensorFlow 2.21.0 with Python 3.11.2 on n1, n2"
    assert "within 0.1 s in /shared/runs" in text["run_root.shared"]


@pytest.mark.parametrize(
    ("measured", "level", "name", "message", "hint"),
    [
        (
            lambda: seen_by_n1(unresolved="Name or service not known", resolved=[]),
            Level.FAILURE,
            "network.names",
            "n1 cannot resolve n2: Name or service not known",
            'add the name to the DNS or to /etc/hosts of n1; or write interface = "eth0", over which all hosts',
        ),
        (
            lambda: seen_by_n1(resolving=5.02),
            Level.WARNING,
            "network.names",
            "n1 takes 5.0 s to resolve n2",
            "list the hosts of the cluster in /etc/hosts of n1",
        ),
        (
            lambda: seen_by_n1(by_name="no answer", links=closed("eth0")),
            Level.FAILURE,
            "network.tcp",
            "n1 cannot connect to n2, 10.0.0.2: no answer (the other direction works)",
            'the firewall of n2 accept TCP from compute hosts on ports 32768-60999 (net.ipv4.ip_local_port_range); or '
            'write interface = "eth1"',
        ),
        (
            lambda: seen_by_n1(by_name="Connection refused", resolved=["127.0.1.1"]),
            Level.FAILURE,
            "network.tcp",
            "n1 cannot connect to n2, 127.0.1.1: Connection refused (the other direction works)",
            "give n2 an address of n2 in the DNS or in /etc/hosts of n1",
        ),
        (
            lambda: seen_by_n1(by_name="another host of this job answers"),
            Level.FAILURE,
            "network.tcp",
            "n1 cannot connect to n2, 10.0.0.2: another host of this job answers",
            "give n2 an address of n2",
        ),
        (
            lambda: seen_by_n1(seen=False),
            Level.FAILURE,
            "run_root.shared",
            "n1 does not see files of n2 in /shared/runs",
            "run_root = ",
        ),
        (
            lambda: seen_by_n1(delay=None),
            Level.FAILURE,
            "run_root.shared",
            "a new file of n2 does not appear on n1 in /shared/runs",
            "run_root = ",
        ),
        (
            lambda: seen_by_n1(delay=8.04),
            Level.WARNING,
            "run_root.shared",
            "a new file of n2 appears on n1 after 8.0 s in /shared/runs",
            "choose another run_root",
        ),
        (
            lambda: seen_by_n1(ahead=-90_000_000),
            Level.WARNING,
            "clock.offset",
            "the clock of n1 is 90.0 s ahead of that of n2",
            "chronyd or ntpd",
        ),
        (
            lambda: on_n2(time=1070.0),
            Level.WARNING,
            "clock.offset",
            "the clock of n2 is 60.0 s or more ahead of that of this host",
            "chronyd or ntpd",
        ),
        (
            lambda: on_n2(time=998.0),
            Level.WARNING,
            "clock.offset",
            "the clock of n2 is 2.0 s or more behind that of this host",
            "chronyd or ntpd",
        ),
        (
            lambda: on_n2(python={"path": "/usr/bin/python", "version": "3.9.2", "tensorflow": "2.15.0"}),
            Level.WARNING,
            "python.tensorflow",
            "hosts differ: TensorFlow 2.21.0 with Python 3.11.2 on n1; TensorFlow 2.15.0 with Python 3.9.2 on n2",
            "use one environment",
        ),
        (
            lambda: on_n2(python={"path": "/usr/bin/python", "version": "3.9.2", "tensorflow": None}),
            Level.WARNING,
            "python.tensorflow",
            "n2: /usr/bin/python, Python 3.9.2, has no TensorFlow",
            "--setup 'source ENV/bin/activate'",
        ),
        (
            lambda: on_n2(python={"error": "there is no python on the PATH"}),
            Level.WARNING,
            "python.tensorflow",
            "n2: there is no python on the PATH",
            "--setup",
        ),
        (
            lambda: on_n2(limits={"nofile": 256}),
            Level.WARNING,
            "limits",
            "n2 allows a task 256 open files (ulimit -n)",
            "raise it to 1024",
        ),
        (
            lambda: on_n2(limits={"as": 4 << 30}),
            Level.WARNING,
            "limits",
            "n2 allows a task 4096 MiB of address space (ulimit -v)",
            "h_vmem",
        ),
        (
            lambda: on_n2(infiniband=True),
            Level.WARNING,
            "limits",
            "n2 allows a task 0 MiB of locked memory (ulimit -l), which InfiniBand needs",
            "set-up line",
        ),
        (
            lambda: on_n2(ptrace={"error": "EPERM", "scope": "3"}),
            Level.WARNING,
            "ptrace",
            "n2 does not allow ptrace (EPERM; kernel.yama.ptrace_scope is 3)",
            "kernel.yama.ptrace_scope = 1",
        ),
    ],
)  # fmt: skip
def test_fault_that_the_probe_measures_has_one_finding(
    measured: Callable[[], list[Record]], level: Level, name: str, message: str, hint: str
) -> None:
    finding = only(judge(PROBE, measured()).findings)
    assert (finding.level, finding.check) == (level, name)
    assert finding.message.startswith(message)
    assert hint in finding.hint


def test_interface_that_connects_all_hosts_is_a_setting_where_names_do_not() -> None:
    lost = {"by_name": "no answer", "links": closed("eth0")}
    measured = [host(1, peers={"1": peer(2, **lost)}), host(2, peers={"0": peer(1, **lost)})]
    judged = judge(PROBE, measured)
    assert "the other direction" not in only(judged.findings).message
    assert [(setting.key, setting.value) for setting in judged.settings] == [("interface", "eth1")]


def test_host_without_any_connection_has_no_setting() -> None:
    judged = judge(PROBE, seen_by_n1(by_name="no answer", links=closed("eth0", "eth1")))
    assert "interface =" not in only(judged.findings).hint
    assert not judged.settings


def test_peer_that_gave_no_answer_in_time_is_a_finding() -> None:
    unknown = {"host": "n2", "port": 40002, "seen": True, "unresolved": "no answer"}
    found = judge(PROBE, [host(1, peers={"1": unknown}), host(2)]).findings
    faults = [finding.check for finding in found if finding.level != Level.OK]
    assert faults == ["network.names", "network.tcp"]


def test_job_with_fewer_hosts_than_requested_measures_no_connection() -> None:
    probe = PROBE.replace(scheduler="sge", hosts=("n1",), gpus=(0,))
    finding = only(judge(probe, [host(1, peers={})]).findings)
    assert (finding.level, finding.check) == (Level.WARNING, "probe.hosts")
    assert finding.message.startswith("the job has run on 1 host (n1) instead of 2")
    assert "allocation_rule" in finding.hint


def test_tasks_on_this_machine_are_told_apart() -> None:
    probe = PROBE.replace(scheduler="local", hosts=("vm", "vm"))
    finding = only(judge(probe, on_n2(limits={"nofile": 20})).findings)
    assert finding.message.startswith("worker:1 on vm allows a task 20 open files")


@pytest.mark.parametrize(
    ("variables", "message", "settings"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "GPUs are granted by CUDA_VISIBLE_DEVICES=0,1 on n1", []),
        ({"SGE_HGR_gpu": "gpu0 gpu2"}, "GPUs are granted by SGE_HGR_gpu=gpu0 gpu2 on n1", []),
        ({"SITE_GPUS": "1 3"}, "SITE_GPUS=1 3 on n1 looks like the grant of 2 GPUs", ["SITE_GPUS"]),
        ({"MY_DEVICES": "GPU-3a,GPU-4b"}, "MY_DEVICES=GPU-3a,GPU-4b on n1 looks like the grant of 2", ["MY_DEVICES"]),
        ({"NUM_GPUS": "2", "GPU_MODEL": "a100"}, "no variable grants GPUs on n1: gridtf claims them under locks", []),
        ({}, "no variable grants GPUs on n1: gridtf claims them under locks", []),
    ],
)
def test_variable_that_grants_gpus(variables: dict[str, str], message: str, settings: list[str]) -> None:
    probe = PROBE.replace(nodes=1, hosts=("n1",), gpus=(2,))
    judged = judge(probe, [host(1, variables=variables, peers={})])
    (finding,) = (finding for finding in judged.findings if finding.check == "gpus.variable")
    assert finding.message.startswith(message)
    assert judged.settings == tuple(Setting("gpu_variable", name, "lists granted GPUs") for name in settings)
    assert finding.level == (Level.WARNING if settings else Level.OK)


def test_variable_that_the_site_has_chosen_is_no_fault() -> None:
    probe = PROBE.replace(nodes=1, hosts=("n1",), gpus=(1,), gpu_variable="SITE_GPUS")
    measured = host(1, variables={"SITE_GPUS": "3"}, devices=["nvidia0", "nvidia3"], peers={})
    judged = judge(probe, [measured])
    messages = [finding.message for finding in judged.findings]
    assert "GPUs are granted by SITE_GPUS=3 on n1 (where the job may use all 2)" in messages
    assert not judged.settings


def test_proxies_are_named_and_are_no_fault() -> None:
    found = judge(PROBE, on_n2(proxies=["http_proxy", "no_proxy"])).findings
    (finding,) = (finding for finding in found if finding.check == "proxies")
    assert finding.level == Level.OK
    assert finding.message.startswith("http_proxy, no_proxy are set on n2; gridtf keeps gRPC")


@pytest.mark.parametrize(
    ("second", "level", "message", "hint"),
    [
        (
            (["SIGUSR2", "SIGTERM"], [2.0, 2.1], 62.1),
            Level.OK,
            "tasks receive SIGTERM and SIGUSR2, and are killed 30 s later (kill_grace is 5 s)",
            "",
        ),
        (
            (["SIGTERM"], [4.0], 6.2),
            Level.WARNING,
            "tasks receive SIGTERM, and are killed 2 s later, but kill_grace is 5 s",
            "write kill_grace = 1, so that",
        ),
        (([], [], 9.0), Level.WARNING, "it kills tasks without a warning: n2", "KillWait (Slurm) or notify"),
    ],
    ids=["long", "short", "none"],
)
def test_end_of_a_job_is_judged_by_its_shortest_warning(
    second: tuple[list[str], list[float], float], level: Level, message: str, hint: str
) -> None:
    first = (["SIGTERM"], [1.0], 31.2)
    endings = [{"signals": names, "times": times, "lived": lived} for names, times, lived in (first, second)]
    assert [check(Ending)(record) for record in endings] == ["", ""]
    finding = judge_end(PROBE, endings, 5.0)
    assert (finding.level, finding.check) == (level, "end.warning")
    assert finding.message == f"when the scheduler ends a job, {message}"
    assert hint in finding.hint
    assert bool(hint) == bool(finding.hint)


def test_end_of_a_job_on_this_machine_is_known_without_a_measurement() -> None:
    finding = local_end(1.0)
    assert (finding.level, finding.check) == (Level.OK, "end.warning")
    assert "tasks receive SIGTERM, and are killed 1 s later (kill_grace)" in finding.message


@pytest.mark.parametrize(("scheduler", "clocks"), [("sge", 1), ("local", 0)])
def test_tasks_on_one_host_tell_nothing_of_connections(scheduler: str, clocks: int) -> None:
    probe = PROBE.replace(scheduler=scheduler, hosts=("n1", "n1"))
    found = judge(probe, [host(1), host(2)]).findings
    assert not [one for one in found if one.check.startswith(("network.", "run_root."))]
    clock = [one.message for one in found if one.check == "clock.offset"]
    expected = "the clocks of this host and of n1 agree to within 10 s, the time that the job took"
    assert clock == [expected] * clocks


def test_words_fit_the_number() -> None:
    peers = (
        {"1": peer(2, links={"eth0": peer(2)["links"]["eth0"]})},
        {"0": peer(1, links={"eth0": peer(1)["links"]["eth0"]})},
    )
    found = judge(PROBE, [host(1, peers=peers[0]), host(2, peers=peers[1])]).findings
    text = {one.check: one.message for one in found}
    assert text["network.tcp"].endswith("in both directions; over the interface eth0")
    assert text["cpus"] == "a task may use 4 of 64 CPUs (n1, n2)"
    assert "gpus.variable" not in text  # none was requested


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((), "host n2 has neither apptainer nor singularity"),
        (("ch-run", "{image}"), "host n2 has no program ch-run, with which container_command begins"),
    ],
)
def test_host_that_cannot_make_containers_is_a_failure(command: tuple[str, ...], message: str) -> None:
    probe = PROBE.replace(contained=JobSpec(command=("true",), container="docker://i", container_command=command))
    finding = only(judge(probe, [host(1, programs=["x"]), host(2)]).findings)
    assert (finding.level, finding.check, finding.message) == (Level.FAILURE, "container", message)
    both = judge(probe, [host(number, programs=["x"], python={"error": "none"}) for number in (1, 2)]).findings
    text = {one.check: one.message for one in both}
    assert text["container"] == "each host has x, which makes the containers of tasks"
    assert "python.tensorflow" not in text  # that of the container counts
