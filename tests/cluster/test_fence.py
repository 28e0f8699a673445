"""The fence round the ports of tasks on real clusters: strangers knock from the job's hosts and from others."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from string import Template
from typing import Any

import pytest

from tests.support.beds import on_every_scheduler
from tests.support.cluster import CHECKOUT, SHARED, Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.fence import KNOCK, MEMBER
from tests.support.jobs import hosts_of

NFT = "/usr/sbin/nft"  # the PATH of a host does not have it
NODES = ("n1", "n2", "n3", "n4")
IPV6 = {host: f"fd81::{host[1]}" for host in NODES}
# What makes a job on two hosts that has them for itself, where `auto` can see that.
EXCLUSIVE = {"slurm": ("--native=--exclusive",), "sge": ("--fence", "hosts")}


@contextmanager
def ipv6(bed: Bed) -> Iterator[None]:
    """The hosts have IPv6 addresses as well."""
    for host, address in IPV6.items():
        bed.run(host, "ip", "addr", "add", f"{address}/64", "dev", "eth0", "nodad", user="root")
    try:
        yield
    finally:
        for host, address in IPV6.items():
            bed.run(host, "ip", "addr", "del", f"{address}/64", "dev", "eth0", user="root")


@contextmanager
def over(bed: Bed) -> Iterator[Path]:
    """A file that members and strangers wait for."""
    path = bed.shared / "over"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def on_two_hosts(bed: Bed, end: Path, *words: str, rounds: int = 3, also: Mapping[str, str] = IPV6) -> ClusterJob:
    """A job with a member on each of two hosts."""
    program = bed.home() / "member.py"
    program.write_text(MEMBER)
    hosts = ("--nodes", "2", "--tasks-per-node", "1") if bed.kind == "slurm" else ("--workers", "2", "--env", "PATH")
    command = ("--", "python", bed.seen(program), bed.seen(end), str(rounds), "0", json.dumps(also))
    return ClusterJob(bed, *bed.options, *hosts, "--gpus-per-task", "0", "--time", "10", *words, *command)


def both_hosts(job: ClusterJob) -> dict[str, dict[str, Any]]:
    """Host -> its record, as soon as both are there."""

    def records() -> dict[str, dict[str, Any]]:
        found = {host: record for host, record in hosts_of(job.run.latest()).items() if "ports" in record}
        return found if len(found) == 2 else {}

    return dict(job.until(records, "the records of both hosts"))


def rounds_done(job: ClusterJob) -> None:
    def done() -> bool:
        logs = job.logs()
        assert not any("Traceback" in log for log in logs.values()), logs
        return [log.count("rounds done") for log in logs.values()] == [1, 1]

    job.until(done, "the rounds of both members")


def knocking(bed: Bed, stack: ExitStack, host: str, user: str, targets: list[tuple[str, int]]) -> subprocess.Popen[str]:
    """A user on a host knocks until it is over."""
    words = ["python", "-c", KNOCK, f"{SHARED}/over", json.dumps(targets)]
    process = stack.enter_context(bed.popen(host, *words, user=user))
    stack.callback(process.kill)
    return process


def results(strangers: list[subprocess.Popen[str]], end: Path) -> list[dict[str, int]]:
    """End the job once all strangers have knocked some times; returns how they fared."""
    for stranger in strangers:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "knocked\n"
    end.touch()
    found = []
    for stranger in strangers:
        out, err = stranger.communicate(timeout=180)
        assert stranger.returncode == 0, err
        found.append(dict(json.loads(out)))
    return found


@on_every_scheduler
@pytest.mark.parametrize("mode", ["users", "hosts"])
def test_strangers_knock_for_the_whole_life_of_a_job_and_only_its_members_get_in(bed: Bed, mode: str) -> None:
    with ipv6(bed), over(bed) as end, ExitStack() as stack:
        job = on_two_hosts(bed, end, "--fence", "auto", *(EXCLUSIVE[bed.kind] if mode == "hosts" else ()))
        records = both_hosts(job)
        assert {record["fence"] for record in records.values()} == {mode}
        inside, outside = min(records), next(host for host in NODES if host not in records)
        targets = [(host, port) for host, record in records.items() for port in record["ports"].values()]
        targets += [(IPV6[host], port) for host, port in targets]
        users = [(outside, "alice"), (outside, "bob"), *([(inside, "bob")] if mode == "users" else [])]
        strangers = [knocking(bed, stack, *user, targets) for user in users]

        rounds_done(job)
        for result in results(strangers, end):
            assert result["tries"] >= 20
            assert result["in"] == 0
        assert job.verdict()["state"] == "COMPLETED"
    assert "stranger" not in "".join(job.logs().values())
    took = [float(line.split()[-1]) for log in job.logs().values() for line in log.splitlines() if line[:3] == "in "]
    assert len(took) == 24


@on_every_scheduler
def test_a_stranger_from_another_host_gets_in_without_a_fence(bed: Bed) -> None:
    """Hence the test above can fail."""
    with over(bed) as end, ExitStack() as stack:
        job = on_two_hosts(bed, end, "--fence", "off", rounds=0)
        records = both_hosts(job)
        targets = [(host, port) for host, record in records.items() for port in record["ports"].values()]
        outside = next(host for host in NODES if host not in records)
        bob = knocking(bed, stack, outside, "bob", targets)
        job.until(lambda: "stranger" in "".join(job.logs().values()), "the stranger")
        assert results([bob], end)[0]["in"] > 0
        assert job.verdict()["state"] == "COMPLETED"


@contextmanager
def firewall(bed: Bed, hosts: tuple[str, ...]) -> Iterator[None]:
    """The rules of docs/site.md are in force on these hosts, for a job of alice's on them."""
    (rules,) = re.findall(r"```\n(table inet .*?\n)```", (CHECKOUT / "docs/site.md").read_text(), re.DOTALL)
    allowed = [bed.run("n1", "getent", "hosts", name).stdout.split()[0] for name in (*hosts, "ctl")]
    values = {"job": "1", "hosts": ", ".join(allowed), "uid": bed.run("n1", "id", "-u").stdout.strip()}
    with ExitStack() as stack:
        for host in hosts:
            bed.run(host, NFT, "-f", "-", user="root", stdin=Template(rules).substitute(values))
            stack.callback(bed.run, host, NFT, "delete", "table", "inet", "job_1", user="root")
        yield


def test_the_documents_firewall_keeps_strangers_out_without_a_fence(slurm: Bed) -> None:
    with ipv6(slurm), over(slurm) as end, firewall(slurm, ("n1", "n2")), ExitStack() as stack:
        job = on_two_hosts(slurm, end, "--fence", "off", rounds=0)
        records = both_hosts(job)
        assert set(records) == {"n1", "n2"}
        targets = [(host, port) for host, record in records.items() for port in record["ports"].values()]
        of_ipv6 = [(IPV6[host], port) for host, port in targets]
        users = [("n3", "alice"), ("n3", "bob"), ("n1", "bob")]
        knocks = [knocking(slurm, stack, *user, [*targets, *of_ipv6]) for user in users]
        knocks += [knocking(slurm, stack, host, "alice", targets) for host in ("n1", "n2")]
        job.until(lambda: all("stranger" in log for log in job.logs().values()), "alice on the job's hosts")
        assert [bool(result["in"]) for result in results(knocks, end)] == [False, False, False, True, True]
        assert job.verdict()["state"] == "COMPLETED"


def test_members_get_in_where_udp_is_blocked_between_the_hosts(slurm: Bed) -> None:
    rule = ["to", "10.81.0.0/24", "ipproto", "udp", "prohibit"]
    with over(slurm) as end, ExitStack() as stack:
        for host in NODES:
            slurm.run(host, "ip", "rule", "add", *rule, user="root")
            stack.callback(slurm.run, host, "ip", "rule", "del", *rule, user="root")
        job = on_two_hosts(slurm, end, "--fence", "users", rounds=1, also={})
        assert {record["fence"] for record in both_hosts(job).values()} == {"users"}
        rounds_done(job)
        end.touch()
        assert job.verdict()["state"] == "COMPLETED"
    assert job.agents_output().count("is UDP blocked?") == 2
