"""Averaging between two hosts of a real cluster: data that end at different steps, and a member that is killed."""

from __future__ import annotations

import json

import pytest

from tests.support.cluster import Bed
from tests.support.clusterfaults import kill9
from tests.support.clusterjobs import ClusterJob

pytestmark = pytest.mark.tensorflow

MEMBER = """
import json, os, time
from gridtf import training
group = training.averaging(every=20)
import tensorflow as tf

v = tf.Variable(tf.fill([1000], float(group.rank)))
group.attach([v])
first = v.numpy().tolist()
for step in range(30 - 20 * group.rank):
    v.assign_add(tf.ones([1000]))
    group.step(3)
group.finish()
with open(f"{os.environ['OUTPUT_DIR']}/{group.rank}.json", "w") as file:
    json.dump({"members": group.members, "first": first, "last": v.numpy().tolist()}, file)
print("finished", flush=True)
while True:
    group.step()
    time.sleep(0.01)
"""


def test_members_on_two_hosts(sge: Bed) -> None:
    options = (*sge.options, "--slots", "2", "--env", "PATH", "--gpus-per-task", "0", "--time", "10")
    job = ClusterJob(sge, *options, "--name", "averaging", "--", "python", "-c", MEMBER)
    job.running(2)
    job.until(lambda: sum("finished" in text for text in job.logs().values()) == 2, "both members", 150)
    told = [json.loads((job.run.output / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["members"] for one in told] == [["worker:0", "worker:1"]] * 2
    assert [one["first"] for one in told] == [[0.0] * 1000] * 2
    # after 20 and 10 steps their weighted mean, and then ten steps of the first member alone
    mean = (20 * 20 + 10 * 10) / 30
    assert told[0]["last"] == told[1]["last"]
    assert told[0]["last"] == pytest.approx([mean + 10] * 1000)
    task = job.tasks()["worker:1"]
    assert task["host"] != job.tasks()["worker:0"]["host"]
    kill9(sge, task["host"], task["pid"])
    verdict = job.verdict()
    assert verdict["state"] == "FAILED"
    assert f"worker:1 on {task['host']}: killed by SIGKILL" in verdict["reason"], job.logs()
