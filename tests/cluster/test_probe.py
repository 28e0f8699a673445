"""The probe of `gridtf doctor` on real clusters: no fault on one in order, and one finding for each fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterfaults import forget_addresses
from tests.support.packages import need_library, need_program

PROBE = """
import json, sys
from gridtf.doctor.probe import configured, probe
from gridtf.values import as_dict
found = probe(configured(sys.argv[3:]), patience=float(sys.argv[1]), end=sys.argv[2] == "end")
print(json.dumps(as_dict(found)))
"""
HOSTS = ("n1", "n2")  # those that the probe runs on
Found = list[dict[str, str]]


def probed(bed: Bed, *words: str, patience: int = 60, end: str = "") -> tuple[Found, dict[str, Any]]:
    """Run a probe on n1 and n2: its findings, and its settings by key."""
    options = [*bed.options, "--exclude", "n3,n4"]
    options += ["--env", "PATH"] if bed.kind == "sge" else []
    env = {"PYTHONPATH": str(CHECKOUT), "GRIDTF_SITE_CONFIG": ""}
    done = bed.run("login", "python", "-c", PROBE, str(patience), end, *options, *words, env=env, timeout=240)
    answer = json.loads(done.stdout)
    return answer["findings"], {setting["key"]: setting["value"] for setting in answer["settings"]}


def faults(found: Found) -> Found:
    return [finding for finding in found if finding["level"] != "ok"]


def only(found: Found) -> dict[str, str]:
    """The only finding that is not ok."""
    (one,) = faults(found)
    assert one["hint"]
    assert "\n" not in one["message"] + one["hint"]
    return one


def runs(bed: Bed, root: str = "gridtf-runs") -> list[str]:
    return [path.name for path in bed.home().glob(f"{root}/gridtf-probe-*")]


@contextmanager
def instead(bed: Bed, host: str, path: str, command: str) -> Iterator[None]:
    """On this host, a file has the output of a command as its content."""
    own = f"/run/instead{path.replace('/', '-')}"
    script = f"touch {path}; {command} >{own}; mount --bind {own} {path}"
    bed.run(host, "bash", "-euc", script, user="root")
    try:
        yield
    finally:
        bed.run(host, "umount", path, user="root")


@on_every_scheduler
def test_probe_of_a_cluster_in_order_has_no_fault_and_leaves_nothing(bed: Bed) -> None:
    before = runs(bed)
    found, settings = probed(bed, "--gpus-per-node", "1", end="end")
    assert faults(found) == []
    text = {finding["check"]: finding["message"] for finding in found}
    assert re.fullmatch(r"the job has run on 2 hosts: n[12], n[12]", text["probe.hosts"])
    assert re.search(r"over the interface eth0\b", text["network.tcp"])
    granted = {"slurm": "GPUs are granted by CUDA_VISIBLE_DEVICES=0 on n1", "sge": "no variable grants GPUs on n"}
    assert text["gpus.variable"].startswith(granted[bed.kind])
    assert "TensorFlow 2" in text["python.tensorflow"]
    # KillWait and notify of these beds are 15 s; on a busy machine the measured time is somewhat shorter or longer
    (seconds,) = re.findall(r"tasks receive .*SIGTERM.*, and are killed (\d+) s later", text["end.warning"])
    assert 10 <= int(seconds) <= 60
    assert settings == {}
    assert runs(bed) == before


@on_every_scheduler
def test_probe_names_the_host_whose_name_has_no_address(bed: Bed) -> None:
    hosts = "/etc/hosts"
    with (
        instead(bed, "n1", hosts, f"grep -v ' n2$' {hosts}"),
        instead(bed, "n2", hosts, f"grep -v ' n1$' {hosts}"),
    ):
        found, settings = probed(bed)
    finding = only(found)
    assert finding["level"] == "failure"
    if bed.kind == "sge":  # qrsh needs the names as well, so that the job does not start
        forget_addresses(bed, "n1", "n2")
        assert finding["check"] == "probe.job"
        assert re.search("resolve", finding["message"]), finding
        return
    assert finding["check"] == "network.names"
    assert finding["message"].startswith("n1 cannot resolve n2: ")
    assert 'write interface = "eth0"' in finding["hint"]
    assert settings == {"interface": "eth0"}


@on_every_scheduler
def test_probe_finds_a_run_root_that_each_host_has_for_itself(bed: Bed) -> None:
    folder = f"{SHARED}/home/alice/private"
    bed.run("login", "mkdir", "-p", folder)
    try:
        for host in HOSTS:
            bed.run(host, "mount", "-t", "tmpfs", "-o", "mode=777", "tmpfs", folder, user="root")
        finding = only(probed(bed, "--run-root", folder)[0])
    finally:
        for host in HOSTS:
            bed.run(host, "umount", folder, user="root", check=False)
    assert (finding["level"], finding["check"]) == ("failure", "probe.job")
    assert "the job wrote nothing to its run directory" in finding["message"]
    assert "choose a shared one with --run-dir or --run-root" in finding["hint"]
    assert runs(bed, "private")


@on_every_scheduler
def test_probe_that_has_to_wait_too_long_is_cancelled(bed: Bed) -> None:
    hold = {"slurm": "--hold", "sge": "-h"}[bed.kind]
    finding = only(probed(bed, f"--native={hold}", patience=1)[0])
    assert (finding["level"], finding["check"]) == ("failure", "probe.start")
    assert re.match(r"job \d+ has not started within 1 s.*; it was cancelled", finding["message"])
    assert bed.busy() == []


def test_probe_names_the_direction_in_which_a_firewall_lets_no_connection_through(two_network_slurm: Bed) -> None:
    bed, nft = two_network_slurm, need_program("nft", "nftables")
    rule = "ip saddr 10.81.0.11 tcp dport 32768-60999 tcp flags & (syn | ack) == syn drop"
    table = "table ip probe {\n chain input {\n type filter hook input priority 0;\n " + rule + "\n }\n}\n"
    try:
        bed.run("n2", nft, "-f", "-", user="root", stdin=table)
        found, settings = probed(bed)
    finally:
        bed.run("n2", nft, "flush", "ruleset", user="root")
    finding = only(found)
    assert (finding["level"], finding["check"]) == ("failure", "network.tcp")
    assert finding["message"] == "n1 cannot connect to n2, 10.81.0.12: no answer (the other direction works)"
    assert finding["hint"].startswith("let the firewall of n2 accept TCP from compute hosts on ports 32768-60999")
    assert settings == {"interface": "eth1"}


def test_probe_finds_the_clock_that_is_off(slurm: Bed) -> None:
    """Programs that n2 starts have a clock that is ahead: libfaketime stands between them and the C library."""
    library = need_library("faketime/libfaketime.so.1", "libfaketime")
    with (
        instead(slurm, "n2", "/etc/faketimerc", "echo +90s"),
        instead(slurm, "n2", "/etc/ld.so.preload", f"echo {library}"),
    ):
        finding = only(probed(slurm)[0])
    assert (finding["level"], finding["check"]) == ("warning", "clock.offset")
    assert re.fullmatch(r"the clock of n2 is (90\.\d|89\.9) s ahead of that of n1", finding["message"])


def test_probe_is_refused_where_tasks_cannot_be_started_on_other_hosts(sge: Bed) -> None:
    finding = only(probed(sge, "--pe", "loose")[0])
    assert (finding["level"], finding["check"]) == ("failure", "probe.submission")
    assert "control_slaves FALSE" in finding["message"]
    assert "suitable PEs: " in finding["hint"]
