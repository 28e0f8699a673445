"""GPU models, resources and host lists on Grid Engine: how they are requested at different sites."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.errors import SpecError
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import advice, scheduler
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.requested import Requested
from tests.support.rendering import plan

# recorded on Son of Grid Engine 8.1.9
HEAD = """\
#name               shortcut   type        relop requestable consumable default  urgency
#----------------------------------------------------------------------------------------
gpu                 gpu        INT         <=    YES         YES        0        0
"""
ROWS = {
    "gpu_type": "gpu_type            gpu_type   CSTRING     ==    YES         NO         NONE     0\n",
    "GPU_Model": "GPU_Model           gm         RESTRING    ==    YES         NO         NONE     0\n",
    "gpu_v100": "gpu_v100            gpu_v100   INT         <=    YES         YES        0        0\n",
    "A100": "A100                A100       RSMAP       <=    YES         HOST       0        0\n",
    "h100": "h100                h100       BOOL        ==    YES         NO         FALSE    0\n",
    "card": "card                card       STRING      ==    YES         NO         NONE     0\n",
}
QHOST = """\
HOSTNAME                ARCH         NCPU NSOC NCOR NTHR  LOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS
----------------------------------------------------------------------------------------------
n1                      lx-amd64        2    1    2    2  5.09   23.6G    2.0G     0.0     0.0
    Host Resource(s):      hf:{0}=A100
n2                      lx-amd64        2    1    2    2  5.09   23.6G    2.0G     0.0     0.0
    Host Resource(s):      hf:{0}=V100
n3                      lx-amd64        2    1    2    2  5.09   23.6G    2.0G     0.0     0.0
    Host Resource(s):      {1}:{0}=V100
"""


def at_site(monkeypatch: pytest.MonkeyPatch, *rows: str, kind: str = "hf", **values: Any) -> tuple[str, ...]:
    asked = []

    def run(argv: list[str], **_: object) -> Answer:
        asked.append(argv[0])
        return Answer(
            0, QHOST.format(argv[2], kind) if argv[0] == "qhost" else HEAD + "".join(ROWS[row] for row in rows), ""
        )

    monkeypatch.setattr(sge, "run", run)
    monkeypatch.setattr(type(scheduler), "is_available", lambda *_: True)
    made = scheduler.login.with_site(_plan(**values))
    before = [*asked]
    again = scheduler.login.with_site(_plan(**values).replace(site=made.site))  # as `gridtf when` knows it
    assert (again.request, again.site, asked) == (made.request, made.site, before), "the site is asked once"
    assert Requested.of(made).site.fixed == ("" if kind != "hf" else Requested.of(made).site.fixed)
    assert made.request.options["gpu_resource"] == Requested.of(made).gpu
    return tuple(line for line in scheduler.login.directives(made) if line.startswith(("-l", "-ar")))


def _plan(**values: Any) -> Any:
    return plan("sge", name="x", pe="rr", **{"tasks": {"worker": {"count": 2}}, **values})


@pytest.mark.parametrize(
    ("rows", "values", "expected"),
    [
        (["gpu_type"], {"gpus_per_task": "a100:1"}, ["-l gpu=1", "-l gpu_type=A100"]),
        (["GPU_Model"], {"gpus_per_task": "v100:1"}, ["-l gpu=1", "-l GPU_Model=V100"]),
        (["gpu_type", "gpu_v100"], {"gpus_per_task": "V100:2"}, ["-l gpu_v100=2"]),
        (["A100"], {"gpus_per_node": "a100:2", "nodes": 1}, ["-l A100=2"]),
        (["h100"], {"gpus_per_task": "H100:1"}, ["-l gpu=1", "-l h100=TRUE"]),
        (
            ["card", "h100"],
            {"gpus_per_task": "a100:1", "gpu_model_resource": "card"},
            ["-l gpu=1", "-l card=A100"],
        ),
        ([], {"gpus_per_task": "a100:1", "gpu_model_resource": "own"}, ["-l gpu=1", "-l own=A100"]),
        (["gpu_type"], {"gpus_per_task": "a100:1", "native": ["-l gpu=1"]}, ["-l gpu_type=A100", "-l gpu=1"]),
        (["gpu_type"], {"gpu_model": "a100", "gpus_per_task": 0}, []),
        (["gpu_type"], {"gpus_per_task": 1}, ["-l gpu=1"]),
    ],
)
def test_models_are_requested_as_the_site_counts_them(
    rows: list[str], values: dict[str, Any], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_site(monkeypatch, *rows, **values) == tuple(expected)


@pytest.mark.parametrize(
    ("rows", "values", "what", "why", "hint"),
    [
        (
            ["gpu_type"],
            {"gpus_per_task": "k80:1"},
            "no host has GPUs of model k80",
            "",
            "A100 (1 host), V100 (2 hosts)",
        ),
        (
            ["gpu_v100", "card"],
            {"gpus_per_task": "k80:1"},
            "no resource of this site stands for GPUs of model k80",
            "`qconf -sc` has: gpu, gpu_v100",
            "gpu_model_resource = …",
        ),
    ],
)
def test_unknown_model_is_refused_with_what_the_site_has(
    rows: list[str], values: dict[str, Any], what: str, why: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError) as caught:
        at_site(monkeypatch, *rows, **values)
    assert (caught.value.key, caught.value.problem, caught.value.why) == ("gpu_model", what, why)
    assert hint in caught.value.hint


def test_model_at_an_unknown_site() -> None:
    with pytest.raises(SpecError, match="no resource of this site stands for GPUs of model a100") as caught:
        scheduler.login.directives(_plan(gpus_per_task="a100:1"))
    assert caught.value.key == "gpu_model"
    assert "-l gpu_type=a100" in scheduler.login.directives(
        _plan(gpus_per_task="a100:1", gpu_model_resource="gpu_type")
    )


def test_model_of_a_load_sensor_may_be_unknown_to_qsub(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(1, "", 'cannot run in PE "rr" because it only offers 0 slots\n')
    for kind, without in (("hf", False), ("hl", True)):
        at_site(monkeypatch, "gpu_type", kind=kind, gpus_per_task="a100:1")
        made = scheduler.login.with_site(_plan(gpus_per_task="a100:1"))
        assert advice.without_load(answer, Requested.of(made)) is without


def test_leader_with_gpus_of_another_model_is_refused() -> None:
    with pytest.raises(SpecError, match="cannot request other hosts for some of its tasks") as caught:
        scheduler.login.directives(_plan(gpus_per_task="a100:1", tasks={"chief": {"gpus": "v100:1"}}))
    assert caught.value.key == "tasks.chief.gpu_model"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"nodelist": ["n1", "n2"]}, ["-l h=(n1|n2)"]),
        ({"nodelist": ["n?"], "exclude": ["n3", "n4"]}, ["-l h=(n?)&!(n3|n4)"]),
        ({"constraint": "ib,arch=lx-amd64"}, ["-l ib=TRUE", "-l arch=lx-amd64"]),
        ({"licenses": "matlab:2,tensor"}, ["-l matlab=2", "-l tensor=1"]),
        ({"reservation": "12"}, ["-ar 12"]),
    ],
)
def test_needs_are_resources(values: dict[str, Any], expected: list[str]) -> None:
    lines = scheduler.login.directives(_plan(**values))
    assert [line for line in lines if line.startswith(("-l", "-ar"))] == expected
    keys = Requested.of(_plan(**values))
    for line in expected:
        if line.startswith("-l"):
            assert keys.key(line[3:].partition("=")[0]) in values


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"nodelist": ["n1|n2"]}, "nodelist"),
        ({"nodelist": ["n1"], "native": ["-l h=n2"]}, "nodelist"),
        ({"constraint": "a b"}, "constraint"),
        ({"licenses": "#x"}, "licenses"),
        ({"reservation": "-1"}, "reservation"),
    ],
)
def test_what_no_line_can_say_is_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        scheduler.login.directives(_plan(**values))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("option", "write"),
    [("-pe mpi 8", 'write pe = "mpi" and slots = "8"'), ("-l gpu=2", "write gpus_per_task = 2")],
)
def test_native_options_for_the_shape_of_a_job_are_refused(option: str, write: str) -> None:
    with pytest.raises(SpecError, match="is requested by a key") as caught:
        _plan(native=[option])
    assert (caught.value.key, caught.value.hint) == ("native", write)
