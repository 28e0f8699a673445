"""Training over the second network of a cluster, chosen by `address` or `interface`; on every scheduler."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import kill9
from tests.support.clusterjobs import ClusterJob, received

HOSTS = ("n1", "n2")
TASK_PORTS = "32768-60999"  # srun has others on this bed
on_two_networks = pytest.mark.parametrize("bed", ["two_network_slurm", "two_network_sge"], indirect=True)
TELL = 'import os; print(os.environ["TF_CONFIG"], os.environ["MASTER_ADDR"], flush=True)'
TRAIN = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([1 << 18])))
for _ in range(10):
    total = step()
print("sum", float(strategy.experimental_local_results(total)[0][0]), flush=True)
"""
SHARE = """
import gridtf, time
from gridtf.training import data
task = gridtf.task()
with open(task.output_dir / f"seen-{task.index}", "w", buffering=1) as file:
    for count, number in enumerate(data.distribute(tf.data.Dataset.range(1000))):
        print(int(number), file=file)
        while count == 100 and not (task.output_dir / "go").exists():
            time.sleep(0.1)
"""


@contextmanager
def tasks_kept_from_the_first_network(bed: Bed) -> Iterator[None]:
    """On Slurm, hosts cannot connect to the ports of tasks through the first network.

    On Grid Engine, where qrsh has ports of the same range, this would keep the agents from starting.
    """
    if bed.kind == "sge":
        yield
        return
    rule = f"to 10.81.0.0/24 ipproto tcp sport {TASK_PORTS} dport {TASK_PORTS} prohibit".split()
    for host in HOSTS:
        bed.run(host, "ip", "rule", "add", *rule, user="root")
    try:
        for host, why in (("n2", "Permission denied"), ("n2i", "Connection refused")):
            assert why in bed.run("n1", "bash", "-c", f"exec 3<>/dev/tcp/{host}/40000", check=False).stderr
        yield
    finally:
        for host in HOSTS:
            bed.run(host, "ip", "rule", "del", *rule, user="root")


def on_two_hosts(bed: Bed, *words: str, name: str) -> ClusterJob:
    hosts = ("--nodes", "2", "--tasks-per-node", "1") if bed.kind == "slurm" else ("--workers", "2", "--env", "PATH")
    return ClusterJob(bed, *bed.options, *hosts, "--gpus-per-task", "0", "--name", name, *words)


def addresses(job: ClusterJob) -> list[str]:
    """The hosts in the TF_CONFIG of the job's workers, which all have the same."""
    found = set()
    for text in (text for name, text in job.logs().items() if name.startswith("worker-")):
        config, end = json.JSONDecoder().raw_decode(text)
        hosts = [member.partition(":")[0] for member in config["cluster"]["worker"]]
        assert text[end:].split()[0] == hosts[0]  # MASTER_ADDR
        found.add(tuple(hosts))
    (hosts_of_all,) = found
    return list(hosts_of_all)


WAYS = {
    "address": (("--address", "{host}i"), "{host}i"),
    "interface": (("--interface", "eth1"), "{network}.1.{number}"),
}


def on_second_network(
    bed: Bed, way: str, program: str, *words: str, meanwhile: Callable[[ClusterJob], None] = lambda job: None
) -> ClusterJob:
    """Run a program on two hosts, and check the addresses that its tasks, and its data workers, are told."""
    chosen, expected = WAYS[way]
    with tasks_kept_from_the_first_network(bed):
        job = on_two_hosts(bed, *chosen, *words, "--", "python", "-c", program, name="over-second")
        meanwhile(job)
        verdict = job.verdict(600)
    assert verdict["state"] == "COMPLETED", (verdict, job.output, job.logs())
    hosts = [job.gpus()[f"worker:{index}"][0] for index in range(2)]
    network = {"slurm": "10.81", "sge": "10.82"}[bed.kind]
    of_hosts = {host: expected.format(host=host, network=network, number=10 + int(host[1])) for host in HOSTS}
    assert addresses(job) == [of_hosts[host] for host in hosts]
    assert sorted(hosts) == list(HOSTS)
    for name, task in job.tasks().items():
        if name.startswith("data_worker:"):
            serves = f"gridtf serves {name} at {of_hosts[task['host']]}:"
            assert serves in job.logs()[name.replace(":", "-")]
    return job


@pytest.mark.parametrize(
    ("bed", "way"), [("two_network_slurm", "interface"), ("two_network_sge", "address")], indirect=["bed"]
)
def test_tasks_are_told_their_addresses_in_the_second_network(bed: Bed, way: str) -> None:
    on_second_network(bed, way, TELL)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("bed", "way"), [("two_network_slurm", "address"), ("two_network_sge", "interface")], indirect=["bed"]
)
def test_training_and_data_workers_use_the_second_network_also_when_the_dispatcher_is_killed(
    bed: Bed, way: str
) -> None:
    def seen(job: ClusterJob) -> list[list[str]]:
        return [path.read_text().split() for path in job.run.output.glob("seen-*")]

    def dispatcher_is_killed(job: ClusterJob) -> None:
        job.until(lambda: [len(numbers) > 100 for numbers in seen(job)] == [True, True], "half of the elements", 600)
        dispatcher = job.tasks()["data_dispatcher:0"]
        kill9(bed, dispatcher["host"], dispatcher["pid"])
        (job.run.output / "go").touch()

    before = {link: received(bed, *HOSTS, link=link) for link in ("eth0", "eth1")}
    job = on_second_network(bed, way, TELL + TRAIN + SHARE, "--data-workers", "2", meanwhile=dispatcher_is_killed)
    after = {link: received(bed, *HOSTS, link=link) for link in ("eth0", "eth1")}
    for host in HOSTS:
        grown = {link: after[link][host] - before[link][host] for link in after}
        assert grown["eth1"] > 5_000_000 > 10 * grown["eth0"], grown
    assert all("sum 2.0" in job.logs()[f"worker-{index}"] for index in range(2))
    assert "1 restart of data_dispatcher:0 after a failure" in job.verdict()["reason"]
    assert sorted(int(number) for numbers in seen(job) for number in numbers) == list(range(1000))
    tasks = job.tasks()
    assert {tasks[f"data_worker:{index}"]["host"] for index in range(2)} == set(HOSTS)


@on_two_networks
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--interface", "ib0"), r"host n\d has no network interface ib0"),
        (("--address", "{host}x"), r"host n\d: its address n\dx does not resolve there: "),
        (("--interface", "lo"), r"host n1: its address is 127.0.0.1, which other hosts cannot reach"),
    ],
    ids=["interface", "address", "loopback"],
)
def test_network_that_hosts_do_not_have_ends_the_job_with_its_reason(
    bed: Bed, words: tuple[str, ...], what: str
) -> None:
    job = on_two_hosts(bed, *words, "--", "true", name="no-network")
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert re.match(what, verdict["reason"]), verdict


def test_faults_of_a_host_concern_both_of_its_links(two_network_slurm: Bed) -> None:
    two_network_slurm.cut("n2")
    for link in ("eth0", "eth1"):
        assert "NO-CARRIER" in two_network_slurm.run("n2", "ip", "link", "show", link).stdout
    two_network_slurm.mend("n2")
    two_network_slurm.kill("n2")
    two_network_slurm.mend("n2")
    for link, address in (("eth0", "10.81.0.12/24"), ("eth1", "10.81.1.12/24")):
        shown = two_network_slurm.run("n2", "ip", "-brief", "address", "show", link).stdout
        assert " UP " in shown
        assert address in shown
