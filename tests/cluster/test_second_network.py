"""Training over the second network of a cluster, chosen by `address` or `interface`; on every scheduler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import bed_for_tests
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob, received
from tests.support.sgebed import GridEngineBed

pytestmark = pytest.mark.timeout(180)

HOSTS = ("n1", "n2")
# for srun's own connections, so that the ports of tasks can be told from them
SRUN_PORTS = "61001-62000"
TASK_PORTS = "32768-60999"
PROGRAM = """
import os
print(os.environ["TF_CONFIG"], os.environ["MASTER_ADDR"], flush=True)
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
@tf.function
def step():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.ones([1 << 18])))
for _ in range(10):
    total = step()
print("sum", float(strategy.experimental_local_results(total)[0][0]))
"""


@pytest.fixture(scope="module", params=["slurm", "sge"])
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    kind = {"slurm": Bed, "sge": GridEngineBed}[request.param]
    options = [f"SrunPortRange={SRUN_PORTS}"] if request.param == "slurm" else []
    with bed_for_tests(kind, second_network=True, options=options) as bed:
        if bed.kind == "slurm":
            _block_tasks_on_the_first_network(bed)
        yield bed


def _block_tasks_on_the_first_network(bed: Bed) -> None:
    """Where the ports of tasks are those of qrsh as well, as in Grid Engine, this would block the scheduler."""
    rule = f"rule add to 10.81.0.0/24 ipproto tcp sport {TASK_PORTS} dport {TASK_PORTS} prohibit"
    for host in HOSTS:
        bed.run(host, "ip", *rule.split(), user="root")
    connect = "exec 3<>/dev/tcp/{host}/40000"
    for host, why in (("n2", "Permission denied"), ("n2i", "Connection refused")):
        assert why in bed.run("n1", "bash", "-c", connect.format(host=host), check=False).stderr


def on_two_hosts(bed: Bed, *words: str, name: str) -> ClusterJob:
    hosts = ("--nodes", "2", "--tasks-per-node", "1") if bed.kind == "slurm" else ("--workers", "2", "--env", "PATH")
    return ClusterJob(bed, *bed.options, *hosts, "--gpus-per-task", "0", "--name", name, *words)


def addresses(job: ClusterJob) -> list[str]:
    """The hosts in the TF_CONFIG of the job's workers, which all have the same."""
    found = set()
    for text in job.logs().values():
        config, end = json.JSONDecoder().raw_decode(text)
        hosts = [member.partition(":")[0] for member in config["cluster"]["worker"]]
        assert text[end:].split()[0] == hosts[0]  # MASTER_ADDR
        found.add(tuple(hosts))
    (hosts_of_all,) = found
    return list(hosts_of_all)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--address", "{host}i"), "{host}i"),
        (("--interface", "eth1"), "{network}.1.{number}"),
    ],
    ids=["address", "interface"],
)
def test_training_runs_over_the_second_network(bed: Bed, words: tuple[str, ...], expected: str) -> None:
    before = {link: received(bed, *HOSTS, link=link) for link in ("eth0", "eth1")}
    job = on_two_hosts(bed, *words, "--", "python", "-c", PROGRAM, name="over-second")
    verdict = job.verdict(120)
    assert verdict["state"] == "COMPLETED", (verdict, job.output, job.logs())
    assert all("sum 2.0" in text for text in job.logs().values())
    hosts = [job.gpus()[f"worker:{index}"][0] for index in range(2)]
    network = {"slurm": "10.81", "sge": "10.82"}[bed.kind]
    assert addresses(job) == [expected.format(host=host, network=network, number=10 + int(host[1])) for host in hosts]
    assert sorted(hosts) == list(HOSTS)
    after = {link: received(bed, *HOSTS, link=link) for link in ("eth0", "eth1")}
    for host in HOSTS:
        grown = {link: after[link][host] - before[link][host] for link in after}
        assert grown["eth1"] > 5_000_000 > 10 * grown["eth0"], grown


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
