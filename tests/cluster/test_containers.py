"""Tasks in containers of a real Apptainer, on several hosts; for every scheduler."""

from __future__ import annotations

import json

from tests.support.beds import on_every_scheduler
from tests.support.cluster import Bed
from tests.support.clusterjobs import ClusterJob
from tests.support.containers import MARKER, make_image, need_apptainer

TELL = f'echo "$(cat /{MARKER}) on $(uname -n), $RANK of $WORLD_SIZE, gpu $CUDA_VISIBLE_DEVICES"; echo "$TF_CONFIG"; '


@on_every_scheduler
def test_tasks_run_in_an_image_of_the_shared_folder_and_agents_outside(bed: Bed) -> None:
    path = f"{need_apptainer()}:{bed.path}"
    image = bed.home() / "image"
    made = make_image(image)
    words = [bed.seen(image) if word == str(image) else word for word in made.options]
    whole = (*bed.options, *bed.two_gpus_on_each_of_four_hosts, *words, f"--env=PATH={path}")
    job = ClusterJob(bed, *whole, "--name", "inside", "--", "sh", "-c", f"{TELL} sleep 600")
    tasks = job.running(8)
    job.until(lambda: all(text.count("\n") > 1 for text in job.logs().values()), "the tasks to print")
    for name, text in job.logs().items():
        kind, index = name.split("-")
        said, config = text.splitlines()[-2:]
        host, gpus = job.gpus()[f"{kind}:{index}"]
        assert said == f"inside on {host}, {index} of 8, gpu {gpus[0]}"
        assert json.loads(config)["task"] == {"type": kind, "index": int(index)}
        assert len(json.loads(config)["cluster"]["worker"]) == 8
    assert "CANCELLED" in job.gridtf("cancel").stdout
    for host in {task["host"] for task in tasks.values()}:
        assert bed.run(host, "pgrep", "-fx", "sleep 600", check=False).stdout == ""
