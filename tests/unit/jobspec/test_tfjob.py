"""A TFJob of Kubeflow's training operator as a job file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gridtf.cli import main
from gridtf.errors import UsageError
from gridtf.jobspec import config, tfjob

CONTAINER: dict[str, Any] = {
    "name": "tensorflow",
    "image": "example.org/mnist:1",
    "command": ["python", "/app/train.py"],
    "args": ["--steps", "100"],
    "env": [{"name": "LEVEL", "value": "2"}],
}
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist, namespace: team}
spec:
  runPolicy: {cleanPodPolicy: None, activeDeadlineSeconds: 7200, backoffLimit: 2, suspend: true}
  tfReplicaSpecs:
    PS:
      replicas: 2
      restartPolicy: Never
      template: {spec: {containers: [{name: tensorflow, image: 'mnist:1', command: [python, train.py],
        args: [--steps, "100"], env: [{name: LEVEL, value: "2"}], resources: {limits: {cpu: 500m, memory: 2Gi}}}]}}
    Worker:
      replicas: 4
      restartPolicy: Never
      template:
        spec:
          tolerations: [{key: gpu}]
          containers:
            - name: tensorflow
              image: mnist:2
              command: [python, train.py]
              args: [--steps, "100"]
              env: [{name: LEVEL, value: "2"}, {name: A, value: "1"}, {name: TOKEN, valueFrom: {secretKeyRef: {}}}]
              resources: {limits: {cpu: 4, memory: 16Gi, nvidia.com/gpu: 1}}
"""


def manifest(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    replica = {"replicas": 2, "template": {"spec": {"containers": [{**CONTAINER, **container}]}}}
    return {"kind": "TFJob", "metadata": {"name": "m"}, "spec": {"tfReplicaSpecs": {"Worker": replica}, **spec}}


def test_job_file_and_notes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mnist.yaml").write_text(MANIFEST)
    assert main(["import", "tfjob", str(tmp_path / "mnist.yaml")]) == 0
    out, err = capfd.readouterr()
    assert out.split("\n", 1)[1] == (
        'name = "mnist"\ntime = "7200s"\nsuccess_policy = "chief"\ncontainer = "docker://mnist:2"\n'
        'command = ["python", "train.py", "--steps", "100"]\n'
        'gpus_per_task = 1\ncpus_per_task = 4\nmem_per_task = "16384M"\n'
        '\n[env]\nLEVEL = "2"\n'
        '\n[tasks.ps]\ncount = 2\ncpus = 1\nmem = "2048M"\n'
        '\n[tasks.worker]\ncount = 4\nenv = { A = "1" }\n'
    )
    assert [line.partition(":")[0] for line in err.splitlines()] == ["gridtf"] * 4
    for words in ("image of ps: ", "tolerations of worker: ", "env TOKEN of worker: ", "suspend of spec.runPolicy: "):
        assert f"gridtf: {words}" in err


@pytest.mark.parametrize(
    ("policies", "limit", "restarts"),
    [
        (["Never", "OnFailure"], 3, 3),
        (["ExitCode", "ExitCode"], 3, 3),
        (["Never", "Never"], 3, 0),
        (["Always"], None, 0),
    ],
)
def test_backoff_limit_of_types_that_start_again_is_restarts(
    policies: list[str], limit: int | None, restarts: int
) -> None:
    made = manifest({}, runPolicy={} if limit is None else {"backoffLimit": limit})
    replicas = made["spec"]["tfReplicaSpecs"]
    for name, policy in zip(("Worker", "PS"), policies, strict=False):
        replicas[name] = {**copy.deepcopy(replicas["Worker"]), "restartPolicy": policy}
    converted = tfjob.convert([made], "a.yaml")
    assert ("restarts = 3\n" in converted.text) == (restarts == 3)
    assert ("restarts" in converted.text) == (restarts == 3)
    again = [policy for policy in policies if policy != "Never"]
    assert len(converted.notes) == bool(again)
    assert all(note.startswith("restartPolicy of ") for note in converted.notes)


def test_job_file_is_read_by_gridtf(tmp_path: Path) -> None:
    container = {"command": ["python", 'a"b\\c', "d\té", "\u2028"], "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    text = tfjob.convert([manifest(container, successPolicy="AllWorkers")], "a.yaml").text
    (tmp_path / "gridtf.toml").write_text(text)
    spec = config.configure(
        config.Typed("gridtf.toml"), {"GRIDTF_SITE_CONFIG": "", "HOME": str(tmp_path)}, tmp_path
    ).spec
    assert spec.command == ("python", 'a"b\\c', "d\té", "\u2028", "--steps", "100")
    assert spec.container == "docker://example.org/mnist:1"
    assert (spec.success_policy, spec.gpus_per_task, spec.count("worker"), spec.env) == ("all", 2, 2, {"LEVEL": "2"})


def test_type_with_its_own_program_and_gpus() -> None:
    made = manifest({"resources": {"limits": {"nvidia.com/gpu": 1}}})
    replicas = made["spec"]["tfReplicaSpecs"]
    replicas["Chief"] = copy.deepcopy(replicas["Worker"])
    replicas["Evaluator"] = copy.deepcopy(replicas["Worker"])
    chief, evaluator = (replicas[name]["template"]["spec"]["containers"][0] for name in ("Chief", "Evaluator"))
    replicas["Chief"]["replicas"] = replicas["Evaluator"]["replicas"] = 1
    chief["resources"] = {"requests": {"cpu": "1500m"}}
    evaluator["command"] = ["python", "eval.py"]
    converted = tfjob.convert([made], "a.yaml")
    text, notes = converted.text, converted.notes
    assert "gpus_per_task" not in text
    assert "cpus_per_task = 2\n" in text
    assert "[tasks.worker]\ncount = 2\ngpus = 1\n" in text
    assert '[tasks.evaluator]\ncount = 1\ncommand = ["python", "eval.py", "--steps", "100"]\n' in text
    assert "nvidia.com/gpu of evaluator: its tasks have no GPU" in notes


@pytest.mark.parametrize(
    ("container", "note"),
    [
        ({"command": None}, "command of worker: the image has it"),
        ({"args": ["--data=$(DATA)"]}, "command of worker: Kubernetes expands $(NAME)"),
        ({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}, "ephemeral-storage of worker: "),
        ({"stdin": True}, "stdin of worker: no counterpart"),
    ],
)
def test_notes_on_containers(container: dict[str, Any], note: str) -> None:
    assert note in "\n".join(tfjob.convert([manifest(container)], "a.yaml").notes)


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([], "it has no Kubernetes object"),
        ([{"kind": "PyTorchJob"}], "it has PyTorchJob"),
        ([manifest({}), manifest({})], "2 were found"),
        ([{"kind": "TFJob", "spec": {}}], "spec.tfReplicaSpecs has no task type"),
        ([{"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Boss": {}}}}], "Boss: unknown task type"),
        ([{"kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": 3}}}], "Worker is not a table"),
        ([manifest({"resources": {"limits": {"memory": "much"}}})], "'much' is not a quantity"),
        ([manifest({"env": ["A=1"]})], "worker.env is not a table"),
        ([manifest({}, runPolicy={"activeDeadlineSeconds": "1h"})], "'1h' is not a whole number"),
        ([manifest({}, runPolicy={"activeDeadlineSeconds": -5})], "time"),
    ],
)
def test_what_is_no_tfjob(documents: list[Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        tfjob.convert(documents, "a.yaml")
    assert words in str(caught.value)
    assert "a.yaml: " in str(caught.value)


def test_file_that_is_not_yaml(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("kind: TFJob\nspec: [\n")
    assert main(["import", "tfjob", str(tmp_path / "a.yaml")]) == 2
    assert main(["import", "tfjob", str(tmp_path / "b.yaml")]) == 2
    err = capfd.readouterr().err
    assert "a.yaml:3: it is not YAML: " in err
    assert "no such file: " in err
