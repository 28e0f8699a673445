"""What a cell would refuse, and what it offers. Output of qsub and qconf was recorded on Son of Grid Engine 8.1.9,
unless a comment names another source."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gridtf.errors import SchedulerError, SpecError, UsageError
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.sge import GridEngine, advice, offers, scheduler
from gridtf.schedulers.sge.commands import sge
from gridtf.schedulers.sge.directives import Resource, Site
from gridtf.schedulers.sge.offers import PE, Cell, Queue
from gridtf.schedulers.sge.requested import Requested
from tests.support.rendering import SCRIPT, of_sweep, plan

RULES = {"fill": "$fill_up", "rr": "$round_robin", "two": "2", "smp": "$pe_slots", "loose": "$round_robin"}
PES = {name: PE(name, 999, name != "loose", rule) for name, rule in RULES.items()}
BEST = [PES[name] for name in ("rr", "fill", "two", "smp", "loose")]
SITE = Cell(
    pes=[*PES.values(), PE("vip", 99, True, "$fill_up", "ml")],
    suitable=["rr", "fill"],
    queues=[Queue("all.q", frozenset({"rr", "fill", "two", "smp"}), None), Queue("short.q", frozenset({"rr"}), 600)],
    resources=[Resource("gpu", "gpu", "YES"), Resource("mem_free", "mf", "NO")],
    projects=["ml"],
    submit_hosts=["n1", "n2"],
)
REFUSED = "Unable to run job: {}\nExiting.\n"
NO_QUEUES = "Unable to run job: Job 33 {}\nverification: no suitable queues\nExiting.\n"
OFFERS = 'cannot run in queue "{}" because it offers only hf:gpu_type={}\n'
NONE = 'cannot run in PE "rr" because it only offers 0 slots'
V100 = OFFERS.format("n3", "v100")
K80 = NO_QUEUES.format(f"(-l gpu_type=k80) {OFFERS.format('n1', 'A100')}Job 33 (-l gpu_type=k80) {V100}Job 33 {NONE}")
BOTH = NO_QUEUES.format(f"(-l gpu_type=A100,h100=TRUE) {V100}Job 33 {NONE}")
FOUND = Answer(0, "verification: found suitable queue(s)\n", "")


def workers(count: int, **more: Any) -> dict[str, Any]:
    return {"tasks": {"worker": {"count": count}}, **more}


def requested(gpu: Resource | None = None, **values: Any) -> Requested:
    made = plan("sge", name="x", **values)
    return Requested.of(made.replace(site=Site([gpu]) if gpu else None))


def counting(consumable: str, kind: str = "INT") -> Resource:
    return Resource("gpu", "gpu", consumable, kind)


def problem(pe: str, gpu: Resource | None = None, **values: Any) -> str:
    return advice.pe_problem(PES[pe], requested(gpu, pe=pe, **values))


def refused(output: str, cell: Cell = SITE, **values: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        advice.refuse(Answer(1, "", output), requested(**values), cell)
    assert "\n" not in caught.value.problem + caught.value.why + caught.value.hint
    return caught.value


def test_requested_combines_the_options() -> None:
    found = requested(**workers(8, pe="mpi*", time="1h", gpus_per_task=2, partition="a.q,b.q@@gpu", account="ml"))
    assert (found.pe, found.slots.low, found.slots.high) == ("mpi*", 8, 8)
    assert found.resources == {"gpu": "2", "h_rt": "1:00:00"}
    assert found.queues == ("a.q", "b.q@@gpu")
    keys = [found.key(option) for option in ("pe", "slots", "gpu", "h_rt", "q", "P", "x")]
    assert keys == ["pe", "tasks", "gpus_per_task", "time", "partition", "account", "native"]


def test_raw_options_override_others_and_are_blamed() -> None:
    found = requested(pe="rr", gpus_per_task=1, native=["-q own.q", "-soft", "-l big", "-hard -l gpu=1,h=n1"])
    assert found.queues == ("own.q",)
    assert found.resources == {"gpu": "1", "h": "n1"}
    assert [found.key(option) for option in ("q", "h", "gpu")] == ["native"] * 3


# --- parallel environments


@pytest.mark.parametrize(
    ("pe", "values"),
    [
        ("rr", workers(8)),
        ("fill", {"nodes": "2-4", "tasks_per_node": 2}),
        ("smp", workers(4)),
        ("two", workers(8)),
        ("two", {"nodes": 4, "tasks_per_node": 2}),
        ("two", {"slots": "3-5"}),
        ("two", workers(4, nodes=4, tasks_per_node=1, cpus_per_task=2)),
        ("loose", workers(1)),
    ],
)
def test_suitable_parallel_environment_has_no_problem(pe: str, values: dict[str, Any]) -> None:
    assert problem(pe, **values) == ""


@pytest.mark.parametrize(
    ("pe", "values", "piece"),
    [
        ("loose", workers(2), "PE `loose` does not let gridtf start tasks on other hosts (control_slaves FALSE)"),
        ("smp", {"nodes": 2}, "allocates slots on one host only (allocation_rule $pe_slots), the job needs 2 hosts"),
        ("two", workers(3), "allocates 2 slots per host (allocation_rule): 3 is not a multiple of that"),
        ("two", {"slots": "3-3"}, "3 is not a multiple"),
        ("two", {"nodes": 2, "tasks_per_node": 4}, "8 slots are 4 hosts, not 2"),
        ("two", {"nodes": 8, "tasks_per_node": 1}, "8 slots are 4 hosts, not 8"),
        ("two", workers(4, nodes=2, cpus_per_task=2), "8 slots are 4 hosts, not 2"),
        ("two", workers(4, slots=8, tasks_per_node=2), "2 tasks per host need 4"),
        ("rr", workers(1000), "has 999 slots in total, the job needs 1000"),
    ],
)
def test_unsuitable_parallel_environment_is_explained(pe: str, values: dict[str, Any], piece: str) -> None:
    assert problem(pe, **values).startswith(f"PE `{pe}` ")
    assert piece in problem(pe, **values)


def test_one_suitable_match_of_a_pe_pattern_is_enough() -> None:
    want = requested(pe="*", **workers(8))
    with pytest.raises(SpecError, match="loose") as caught:
        advice.check_pes([PES["loose"]], want)
    assert caught.value.key == "pe"
    assert advice.check_pes([PES["rr"]], want) == []
    (note,) = advice.check_pes([PES["rr"], PES["loose"]], want)
    assert note.startswith("Grid Engine may choose an unsuitable parallel environment: PE `loose` does not let")


@pytest.mark.parametrize(
    ("pe", "consumable", "values", "piece"),
    [
        ("smp", "JOB", workers(4), ""),
        ("rr", "JOB", workers(1), ""),
        ("rr", "JOB", workers(4), "may use several hosts, but gpu counts per job (consumable JOB)"),
        ("two", "JOB", workers(2), ""),
        ("two", "JOB", workers(4), "may use several hosts"),
        # HOST is Univa's and Open Cluster Scheduler's: not seen live
        ("smp", "HOST", workers(4), ""),
        ("rr", "HOST", workers(4), "counts per host (consumable HOST): set gpus_per_node"),
        ("rr", "HOST", workers(4, gpus_per_node=2), ""),
        ("two", "HOST", workers(4, nodes=2), ""),
        ("rr", "YES", workers(4), ""),
    ],
)
def test_gpus_that_are_not_counted_per_slot_need_known_hosts(
    pe: str, consumable: str, values: dict[str, Any], piece: str
) -> None:
    text = problem(pe, counting(consumable), gpus_per_task=1, **values)
    assert piece in text
    assert bool(piece) == bool(text)


def test_gpus_requested_by_native_are_the_user_s_own_business() -> None:
    assert problem("rr", None, gpus_per_task=1, native=["-l gpu=4"], **workers(4)) == ""


def test_slots_of_a_gpu_task_that_may_be_divided_among_hosts_are_noted() -> None:
    values = workers(2, gpus_per_task=1, cpus_per_task=4)
    (note,) = advice.check_pes([PES["rr"]], requested(pe="rr", **values))
    assert note.startswith("PE `rr` may divide the 4 slots of a task among hosts (allocation_rule $round_robin)")
    assert advice.check_pes([PES["smp"]], requested(pe="smp", **values)) == []
    assert advice.check_pes([PE("four", 99, True, "4")], requested(pe="four", **values)) == []
    assert advice.check_pes([PES["rr"]], requested(pe="rr", **workers(2, gpus_per_task=1))) == []


def test_hosts_that_a_filling_pe_may_not_spread_to_are_noted() -> None:
    for values in (workers(4, nodes=2), workers(4, tasks_per_node=2)):
        (note,) = advice.check_pes([PE("mpi", 99, True, "$fill_up")], requested(pe="mpi", **values))
        assert note.startswith(
            "PE `mpi` fills a host before it takes the next (allocation_rule $fill_up), so the tasks"
        )
        assert advice.check_pes([PES["rr"]], requested(pe="rr", **values)) == []
    for values in (workers(4), workers(4, nodes=1), workers(4, tasks_per_node=4)):
        assert advice.check_pes([PE("mpi", 99, True, "$fill_up")], requested(pe="mpi", **values)) == []


@pytest.mark.parametrize(
    ("rule", "values", "what", "hint"),
    [
        ("8", workers(1, cpus_per_task=4), "8 slots per host (allocation_rule): 4 is not a multiple", "slots = 8"),
        ("8", workers(3, cpus_per_task=4), "12 is not a multiple", "slots = 16"),
        ("6", workers(3, cpus_per_task=4), "1 task of 4 slots on each, 12 slots have room for 2 of 3", "slots = 18"),
        ("8", workers(8, cpus_per_task=3), "2 tasks of 3 slots on each, 24 slots have room for 6 of 8", "slots = 32"),
        ("2", workers(2, cpus_per_task=4), "a task needs 4", ""),
        ("8", workers(3, nodes=1, cpus_per_task=4), "12 is not a multiple", ""),
        ("8", {"pe": "x", "slots": "4-6"}, "4-6 is not a multiple", ""),
    ],
)
def test_slots_for_a_fixed_allocation_rule_are_named(rule: str, values: dict[str, Any], what: str, hint: str) -> None:
    pe = PE("x", 99, True, rule)
    with pytest.raises(SpecError) as caught:
        advice.check_pes([pe], requested(**{"pe": "x", **values}))
    assert what in caught.value.problem
    assert caught.value.hint == (f"write {hint}" if hint else "")
    if hint:
        advice.check_pes([pe], requested(**{"pe": "x", "slots": int(hint.split()[-1]), **values}))


def test_gpu_resource_that_is_not_counted_is_noted() -> None:
    (note,) = advice.check_counting(counting("NO"), requested(gpus_per_task=1))
    assert "not counted" in note
    assert advice.check_counting(counting("YES"), requested(gpus_per_task=1)) == []


def test_part_of_a_gpu_of_a_whole_number_is_noted() -> None:
    want = requested(pe="smp", gpus_per_task=1, cpus_per_task=4, **workers(2))
    (note,) = advice.check_counting(counting("YES", "INT"), want)
    assert note.startswith("0.25 of resource gpu per slot is requested, although its type is INT")
    assert "write slots = 2: a slot is then a task with its GPUs" in note
    assert advice.check_counting(counting("YES", "DOUBLE"), want) == []


def test_listed_hosts_have_to_exist() -> None:
    known = ["n1.site.org", "n3.site.org"]
    for name, hint in (("n3", "did you mean n3.site.org?"), ("x7", "there are: n1.site.org, n3.site.org")):
        with pytest.raises(SpecError, match=f"there is no host {name}") as caught:
            advice.check_hosts({"nodelist": ["n1*"], "exclude": [name]}, known)
        assert (caught.value.key, caught.value.hint) == ("exclude", hint)
    advice.check_hosts({"exclude": ["N3.site.org", "n1*"]}, known)
    advice.check_hosts({"nodelist": ["n3"]}, [])  # qconf is refused


# --- refusals


@pytest.mark.parametrize(
    ("output", "values", "key", "what", "hint"),
    [
        (
            REFUSED.format('job rejected: the requested parallel environment "rx" does not exist'),
            workers(8, pe="rx"),
            "pe",
            "PE `rx` does not exist",
            "suitable PEs: rr, fill",
        ),
        (
            REFUSED.format('Job was rejected because job requests unknown queue "al.q"'),
            {"partition": "al.q"},
            "partition",
            "queue `al.q` does not exist",
            "existing queues: all.q, short.q",
        ),
        (
            REFUSED.format('job rejected: the requested project "mi" does not exist'),
            {"account": "mi"},
            "account",
            "project `mi` does not exist",
            "existing projects: ml",
        ),
        (
            REFUSED.format('unknown resource "ngpus"'),
            {"native": ["-l ngpus=1"]},
            "native",
            "the cell has no resource `ngpus`",
            "",
        ),
        (
            NO_QUEUES.format('(-l gpu=3) cannot run at host "n4" because it offers only hc:gpu=2.000000'),
            {"gpus_per_task": 3},
            "gpus_per_task",
            "3 GPUs requested, no host has more than 2",
            "",
        ),
        (
            NO_QUEUES.format('cannot run in PE "rr" because it only offers 4 slots'),
            workers(8, pe="rr", gpus_per_task=2),
            "tasks",
            "8 slots with 2 GPUs each requested, PE `rr` offers 4",
            "suitable PEs: rr, fill",
        ),
        (
            NO_QUEUES.format('cannot run in PE "smp" because it only offers 0 slots'),
            {"pe": "smp", "slots": 8},
            "slots",
            "8 slots on one host requested, PE `smp` never offers that many",
            "",
        ),
        (
            NO_QUEUES.format('cannot run in PE "vip" because it only offers 0 slots'),
            workers(2, pe="vip"),
            "pe",
            "no queue offers PE `vip` (pe_list)",
            "suitable PEs: rr, fill",
        ),
        (
            NO_QUEUES.format('cannot run in PE "smp" because it only offers 0 slots'),
            workers(2, pe="smp", partition="short.q"),
            "pe",
            "queue short.q does not offer PE `smp` (pe_list)",
            "queue all.q offers it",
        ),
        (
            NO_QUEUES.format('(-l h_rt=3600) cannot run in queue "short.q" because of cluster queue'),
            {"partition": "short.q@n1", "time": "1h"},
            "time",
            "01:00:00 is more than queue short.q allows (00:10:00)",
            "queues that allow it: all.q (no limit)",
        ),
        ('qsub: invalid option argument "-bogus"\n', {"native": ["-bogus"]}, "native", "-bogus", "man qsub"),
        (
            REFUSED.format("Unable to read script file because of error: -ac option must have a context_list argument"),
            {"native": ["-ac"]},
            "native",
            "-ac option must have",
            "man qsub",
        ),
        (REFUSED.format("job rejected: no project assigned to job"), {}, "account", "must have a project", "ml"),
        (
            REFUSED.format('Job was rejected because job requests unknown queue "b.q"'),
            {"native": ["-soft -q b.q"]},
            "native",
            "queue `b.q` does not exist",
            "all.q",
        ),
        (
            NO_QUEUES.format(
                'cannot run because it exceeds limit "alice////n4/" in rule "slots/1"\n'
                'Job 33 cannot run in PE "rr" because it only offers 0 slots'
            ),
            workers(4, pe="rr"),
            "tasks",
            "never offers",
            "resource quota slots limits it (`qconf -srqs slots`)",
        ),
        (
            K80,
            workers(2, pe="rr", constraint="gpu_type=k80"),
            "constraint",
            "no host has gpu_type=k80",
            "hosts have A100, v100",
        ),
        (  # which is no amount
            K80.replace("A100", "2080ti").replace("v100", "3090"),
            workers(2, pe="rr", constraint="gpu_type=k80"),
            "constraint",
            "no host has gpu_type=k80",
            "hosts have 2080ti, 3090",
        ),
        (
            BOTH,
            workers(2, pe="rr", constraint="gpu_type=A100,h100"),
            "constraint",
            "no host has gpu_type=A100 and h100=TRUE",
            "`qhost -F gpu_type,h100` shows what each host has",
        ),
        (
            NO_QUEUES.format('cannot run in PE "rr" because it only offers 8 slots'),
            workers(12, pe="rr", nodelist=["n1", "n2"]),
            "tasks",
            "12 slots on hosts (n1|n2) requested, PE `rr` offers 8",
            "",
        ),
        (REFUSED.format('attribute "gpu" is not a integer value'), {"native": ["-l x=x"]}, "native", "integer", ""),
        (
            "Unable to run job: job rejected: 0 is an invalid task id\nExiting.\n",
            {"native": ["-t 1-3"]},
            "native",
            "0 is an invalid task id",
            "",
        ),
    ],
)
def test_refusal_by_qsub_blames_a_key(output: str, values: dict[str, Any], key: str, what: str, hint: str) -> None:
    error = refused(output, **values)
    assert error.key == key
    assert what in error.problem
    assert hint in error.hint


def test_gpus_that_are_short_are_shown_by_qhost() -> None:
    none = SITE.replace(suitable=())
    few = NO_QUEUES.format('cannot run in PE "rr" because it only offers 8 slots')
    error = refused(few, none, pe="rr", gpus_per_task=1, **workers(16))
    assert error.hint == "`qhost -F gpu` shows the GPUs of each host"
    assert refused(few, none, pe="rr", **workers(16)).hint == "`qstat -g c` shows the slots of each queue"


def test_gpus_per_job_above_those_of_any_host_are_refused() -> None:
    output = NO_QUEUES.format('cannot run at host "n4" because it offers only hc:gpu=2.000000')
    values = workers(4, pe="smp", gpus_per_task=1)
    assert refused(output, gpu=counting("JOB"), **values).problem == "4 GPUs requested, no host has more than 2"
    assert refused(output, **values).problem == "1 GPUs per slot requested, no host has more than 2"
    output = NO_QUEUES.format('cannot run in PE "smp" because it only offers 0 slots')
    assert "4 slots with 4 GPUs per host" in refused(output, gpu=counting("HOST"), **values).problem


def test_unknown_gpu_resource_suggests_another() -> None:
    made = requested(gpus_per_task=1, gpu_resource="ngpus")
    with pytest.raises(SpecError) as caught:
        advice.refuse(Answer(1, "", REFUSED.format('unknown resource "ngpus"')), made, SITE)
    assert caught.value.key == "gpu_resource"
    assert caught.value.hint == "name your site's GPU resource with --gpu-resource; likely: gpu"


def test_parallel_environment_limited_to_other_users_is_refused() -> None:
    cell = Cell(pes=SITE.pes, queues=[Queue("all.q", frozenset({"vip"}), None)])
    error = refused(
        NO_QUEUES.format('cannot run in PE "vip" because it only offers 0 slots'), cell, **workers(2, pe="vip")
    )
    assert (error.key, error.problem) == ("pe", "PE `vip` is only for users in ml")


def test_refusals_are_explained_without_qconf() -> None:
    output = REFUSED.format('job rejected: the requested parallel environment "rx" does not exist')
    error = refused(output, Cell(), **workers(8, pe="rx"))
    assert error.problem == "PE `rx` does not exist"
    assert "administrators" in error.hint
    output = NO_QUEUES.format('cannot run in PE "rr" because it only offers 16 slots')
    assert refused(output, Cell(), **workers(17, pe="rr")).problem == "17 slots requested, PE `rr` offers 16"
    output = NO_QUEUES.format('cannot run in PE "rr" because it only offers 0 slots')
    assert refused(output, Cell(), **workers(1, pe="rr")).problem == "1 slot requested, PE `rr` never offers that many"


def test_host_that_is_no_submit_host_is_reported() -> None:
    output = REFUSED.format('denied: host "login" is not a submit host')
    with pytest.raises(SchedulerError, match='submitted from this host: denied: host "login"') as caught:
        advice.refuse(Answer(1, "", output), requested(), SITE)
    assert caught.value.hint == "submit from one of: n1, n2"


def test_other_refusals_quote_qsub() -> None:
    output = REFUSED.format("job rejected: your user id 0 is lower than minimum user id 1000 of cluster configuration")
    with pytest.raises(SchedulerError, match="would refuse this job: job rejected: your user id 0 is lower"):
        advice.refuse(Answer(1, "", output), requested(), SITE)


# --- commands of Grid Engine


class Commands:
    """Answers as qsub and qconf do, and records how they were called."""

    def __init__(self, **verdicts: Answer) -> None:
        self.verdicts = verdicts
        self.complex = ""
        self.calls: list[list[str]] = []

    def __call__(self, argv: list[str], *, limit: float, text: str = "") -> Answer:
        self.calls.append(argv)
        if argv[0] == "qsub":
            assert text == ("" if "-b" in argv else SCRIPT)
            return self.verdicts.get(argv[4] if argv[3:4] == ["-pe"] else argv[2], FOUND)
        if argv[1] == "-sp" and argv[2] in PES:
            pe = PES[argv[2]]
            control = str(pe.control_slaves).upper()
            text = f"pe_name {pe.name}\nslots 999\nallocation_rule {pe.rule}\ncontrol_slaves {control}\n"
            return Answer(0, text, "")
        if argv[1] == "-sc" and self.complex:
            return Answer(0, self.complex, "")
        return Answer(0, "\n".join(PES), "") if argv[1] == "-spl" else Answer(1, "", "denied\n")


def test_missing_parallel_environment_names_possible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("sge", name="x", **workers(8))
    monkeypatch.setattr(GridEngine, "is_available", lambda self, environ: True)
    monkeypatch.setattr(sge, "run", Commands())
    fitting = [pe.name for pe in BEST if not advice.pe_problem(pe, requested(pe="any", **workers(8)))]
    assert 0 < len(fitting) < len(PES)
    with pytest.raises(SpecError) as caught:
        scheduler.login.directives(made)
    assert caught.value.key == "pe"
    assert caught.value.hint == f"name one with --pe; possibly suitable: {', '.join(fitting)}"
    monkeypatch.setattr(sge, "run", lambda argv, limit: Answer(1, "", "denied"))
    with pytest.raises(SpecError) as caught:
        scheduler.login.directives(made)
    assert caught.value.hint == "name one with --pe; `qconf -spl` lists them"


def test_check_of_a_valid_job_runs_three_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    monkeypatch.setattr(sge, "run", commands)
    assert advice.check(plan("sge", name="x", pe="rr", **workers(8))) == ()
    assert [argv[:3] for argv in commands.calls] == [["qsub", "-w", "v"], ["qconf", "-sp", "rr"], ["qstat", "-g", "c"]]


def test_complex_is_asked_once_from_rendering_to_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    monkeypatch.setattr(GridEngine, "is_available", lambda self, environ: True)
    monkeypatch.setattr(sge, "run", commands)
    made = plan("sge", name="x", pe="smp", gpus_per_task=1, cpus_per_task=4, exclude=["n1"], **workers(2))
    assert "-l gpu=0.25" in scheduler.login.directives(scheduler.login.with_site(made))  # qconf is refused: per slot
    commands.complex = COMPLEX.replace("YES        0 ", "JOB        0 ")
    commands.calls.clear()
    made = scheduler.login.with_site(made)
    assert "-l gpu=2" in scheduler.login.directives(made)
    assert "-l h=!(n1)" in scheduler.login.directives(made)
    assert advice.check(made) == ()
    assert [argv[1] for argv in commands.calls] == ["-sc", "-sel", "-w", "-sp", "-g"]
    commands.calls.clear()
    scheduler.login.with_site(plan("sge", name="x", pe="smp", **workers(2)))
    scheduler.login.with_site(plan("sge", name="x", pe="smp", gpus_per_task=1, native=["-l gpu=1"], **workers(2)))
    assert commands.calls == []


def test_job_waits_where_all_of_its_queues_are_disabled() -> None:
    queues = [Queue("all.q", frozenset({"fill", "rr"}), None), Queue("short.q", frozenset({"rr"}), 600)]
    states = list(zip(queues, (False, True), strict=True))

    def notes(**values: Any) -> list[str]:
        made = plan("sge", name="x", **values)
        return advice.closed_queues(Requested.of(made), states)

    note = "the job waits until one of its queues can start jobs, all are disabled or in error: all.q"
    assert notes(pe="fill", **workers(2)) == notes(partition="all.q") == [note]
    assert notes(pe="rr", **workers(2)) == notes() == notes(partition="none.q") == []


@pytest.mark.parametrize("pe", ["fill", ""])
def test_job_without_a_resource_that_every_job_must_request_is_refused(pe: str) -> None:
    lines = [
        f"Job 7 does not request 'forced' resource \"{name}\" of queue instance {queue}@n4"
        for name in ("h_rt", "h_vmem")
        for queue in ("all.q", "short.q")
    ]
    end = 'Job 7 cannot run in PE "fill" because it only offers 0 slots' if pe else ""
    values = {"pe": pe, **workers(2)} if pe else {}
    error = refused("\n".join(["Unable to run job: " + lines[0], *lines[1:], end]), **values)
    assert (error.key, error.problem) == ("time", "every job must ask for a walltime (h_rt is FORCED)")
    assert error.hint.startswith('write time = "')
    error = refused("\n".join([*lines[2:], end]), **values)
    assert (error.key, error.problem) == ("native", "every job must request h_vmem (requestable FORCED)")
    assert error.hint.startswith('add to native: "-l h_vmem=')


def test_job_whose_hosts_are_all_excluded_is_refused() -> None:
    line = 'Job 7 (-l hostname=!(n1|n2)) cannot run in queue "all.q@n{0}" because it offers only qf:hostname=n{0}\n'
    output = f"Unable to run job: {line.format(1)}{line.format(2)}"
    assert refused(output, exclude=["n1", "n2"]).problem == "no host is left that could run the job"


@pytest.mark.parametrize(
    ("name", "tried", "why"),
    [
        ("rrr", ["rr", "fill"], "did you mean rr?"),
        ("tow", ["two", "rr"], "did you mean two?"),
        ("fil", ["fill", "rr"], "did you mean fill?"),
        (
            "loos",
            ["rr", "fill"],
            "did you mean loose? PE `loose` does not let gridtf start tasks on other hosts (control_slaves FALSE)",
        ),
        ("nosuch", ["rr", "fill"], ""),
    ],
)
def test_parallel_environment_that_is_meant_comes_first(
    name: str, tried: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Answer(1, "", REFUSED.format(f'job rejected: the requested parallel environment "{name}" does not exist'))
    commands = Commands(v=unknown, **dict.fromkeys(PES, FOUND))
    monkeypatch.setattr(sge, "run", commands)
    with pytest.raises(SpecError) as caught:
        advice.check(plan("sge", name="x", pe=name, **workers(8)))
    assert caught.value.why == why
    assert [argv[4] for argv in commands.calls if argv[3:4] == ["-pe"]] == tried
    assert caught.value.hint == f"suitable PEs: {', '.join(tried)}; existing: {', '.join(PES)}"


def test_parallel_environment_for_one_host_comes_first_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Answer(1, "", REFUSED.format('job rejected: the requested parallel environment "x" does not exist'))
    monkeypatch.setattr(sge, "run", Commands(v=unknown, **dict.fromkeys(PES, FOUND)))
    for nodes, suitable in ((1, "smp, rr; "), (4, "rr, two; ")):
        with pytest.raises(SpecError) as caught:
            advice.check(plan("sge", name="x", pe="x", nodes=nodes, tasks_per_node=8 // nodes))
        assert caught.value.hint.startswith(f"suitable PEs: {suitable}")


def test_unsuitable_parallel_environment_names_suitable_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    no = Answer(1, "", NO_QUEUES.format('cannot run in PE "smp" because it only offers 4 slots'))
    monkeypatch.setattr(sge, "run", Commands(smp=no))
    with pytest.raises(SpecError) as caught:
        advice.check(plan("sge", name="x", pe="loose", **workers(8)))
    assert caught.value.hint == "suitable PEs: rr, fill"
    commands = Commands(v=no)
    monkeypatch.setattr(sge, "run", commands)
    with pytest.raises(SpecError, match="8 slots on one host") as caught:
        advice.check(plan("sge", name="x", pe="smp", **workers(8)))
    assert caught.value.hint == "suitable PEs: rr, fill"
    assert [argv[0] for argv in commands.calls].count("qsub") == 3  # each uses up a job id


def test_walltime_like_the_array_tasks_of_qsub_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", Commands())
    (note,) = advice.check(plan("sge", name="x", time="1-10"))
    assert note == "time: 1-10 is the walltime 1-10:00:00; array tasks, as of qsub -t, are written --native='-t 1-10'"
    assert advice.check(plan("sge", name="x", time="1:00:00")) == ()


def test_check_of_resources_reported_by_load_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = '(-l mem_free=1M) cannot run in queue "all.q@n4" because job requests unknown resource (mem_free)'
    commands = Commands(v=Answer(1, "", NO_QUEUES.format(unknown)))
    monkeypatch.setattr(sge, "run", commands)
    assert advice.check(plan("sge", name="x", mem="1M")) == ()
    little = '(-l mem_free=900G) cannot run at host "n1" because it offers only hl:mem_free=22.594G'
    commands.verdicts["p"] = Answer(1, "", NO_QUEUES.format(little))
    (note,) = advice.check(plan("sge", name="x", mem="900G"))
    assert note == (
        'no host currently has what the job requests: (-l mem_free=900G) cannot run at host "n1" '
        "because it offers only hl:mem_free=22.594G"
    )


@pytest.mark.parametrize(
    ("offer", "trial", "most"),
    [
        ("hl:mem_free=22.594G", "job requests unknown resource (mem_free)", "23.586G"),  # load
        ("hc:mem_free=2.000G", "it offers only hc:mem_free=64.000G", "64G"),  # of which 62 are in use
        ("hc:mem_free=2.000G", "", ""),  # a host has as much
        ("hc:slots=0.000000", "job requests unknown resource (mem_free)", ""),
    ],
)
def test_memory_that_no_host_ever_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, offer: str, trial: str, most: str
) -> None:
    """By the answer to a request for nothing else, or by what hosts report of it in all."""

    class Cell(Commands):
        def __call__(self, argv: list[str], *, limit: float, text: str = "") -> Answer:
            if argv == ["qhost", "-F", "mem_total"]:
                return Answer(0, "n1\n   hl:mem_total=7.586G\nn2\n   hl:mem_total=23.586G\n", "")
            if "mem_free=90G" in argv and trial:
                return Answer(1, "", NO_QUEUES.format(f'cannot run at host "n1" because {trial}'))
            return FOUND if "-b" in argv else super().__call__(argv, limit=limit, text=text)

    verdict = NO_QUEUES.format(f'(-l mem_free=90G) cannot run at host "n1" because it offers only {offer}\n{NONE}')
    none = NO_QUEUES.format('cannot run in PE "rr" because it only offers 0 slots')
    monkeypatch.setattr(sge, "run", Cell(v=Answer(1, "", none), p=Answer(1, "", verdict)))
    made = plan("sge", name="x", pe="rr", native=["-l mem_free=90G"], **workers(2))
    if most:
        with pytest.raises(SpecError) as caught:
            advice.check(made)
        assert caught.value.problem == f"90G of resource mem_free per slot requested, no host has more than {most}"
    else:
        (note,) = advice.check(made)
        assert note.startswith("no host currently has what the job requests: ")


def test_value_that_no_host_has_is_refused_though_it_may_be_of_a_load_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("sge", name="x", **workers(2, pe="rr", constraint="gpu_type=k80"))
    monkeypatch.setattr(sge, "run", Commands(v=Answer(1, "", K80), p=Answer(1, "", K80)))
    with pytest.raises(SpecError, match="no host has gpu_type=k80"):
        advice.check(made)
    busy = '(-l slots=1) cannot run in queue "n1" because it offers only hc:slots=0.000000'
    monkeypatch.setattr(
        sge, "run", Commands(v=Answer(1, "", K80), p=Answer(1, "", NO_QUEUES.format(f"{busy}\n{NONE}")))
    )
    assert advice.check(made) == (f"no host currently has what the job requests: {NONE}",)  # n1 may have it


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({"nodelist": ["n1", "n2"]}, "nodelist leaves 2"),
        ({"exclude": ["n1", "n[34]*", "n3", "n4"]}, "exclude leaves 1"),
        ({"nodelist": ["n?"], "exclude": ["n3", "n4"]}, "nodelist and exclude leave 2"),
        ({"nodelist": ["n?"], "exclude": ["n3"]}, ""),
        ({}, ""),
    ],
)
def test_hosts_that_are_left_are_enough(values: dict[str, Any], left: str) -> None:
    request = plan("sge", name="x", pe="one", nodes=3, tasks_per_node=1, **values).request
    advice.check_left(request, [])
    try:
        advice.check_left(request, ["n1", "n2", "n3", "n4"])
        found = ""
    except SpecError as error:
        found = error.problem
    assert found == (f"the job needs 3 hosts, and {left}" if left else "")


def test_memory_of_a_parallel_job_is_not_told_as_too_many_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """For such a job, -w v leaves the load out without saying so."""
    none = Answer(1, "", NO_QUEUES.format('cannot run in PE "rr" because it only offers 0 slots'))

    class WithoutLoad(Commands):
        def __call__(self, argv: list[str], *, limit: float, text: str = "") -> Answer:
            answer = super().__call__(argv, limit=limit, text=text)
            return FOUND if argv[:3] == ["qsub", "-w", "v"] and "-b" in argv else answer

    commands = WithoutLoad(v=none)
    monkeypatch.setattr(sge, "run", commands)
    made = plan("sge", name="x", pe="rr", mem_per_task="1G", **workers(2))
    assert advice.check(made) == ()
    commands.verdicts["p"] = none  # all hosts are busy
    (note,) = advice.check(made)
    assert note.startswith("no host currently has what the job requests: ")
    assert not any("mem_free" in word for argv in commands.calls if "-b" in argv for word in argv)
    monkeypatch.setattr(sge, "run", Commands(v=none, p=none))  # nor can it run without its memory
    with pytest.raises(SpecError, match="2 slots requested"):
        advice.check(made)


IN_USE = (
    'Unable to run job: Job 176 (-l NONE) cannot run in queue "n4" because exclusive resource (exclusive) is already '
    'in use\nJob 176 cannot run in PE "rr" because it only offers 0 slots\nverification: no suitable queues\nExiting.\n'
)


@pytest.mark.parametrize("more", [{}, {"mem_per_task": "1G"}, {"gpus_per_node": 2, "tasks": {}, "nodes": 2}])
def test_hosts_in_exclusive_use_make_a_job_wait(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Answer(1, "", IN_USE + 'cannot run at host "n1" because it offers only hc:gpu=1.000000\n')
    monkeypatch.setattr(sge, "run", Commands(v=busy))
    notes = advice.check(plan("sge", name="x", pe="rr", **{**workers(2), **more}))
    assert notes[0] == "the job may have to wait: other jobs have hosts for themselves (resource exclusive)"
    monkeypatch.setattr(sge, "run", Commands(rr=busy, fill=busy))
    with pytest.raises(SpecError) as caught:  # nor are they a reason not to suggest a parallel environment
        advice.check(plan("sge", name="x", pe="loose", **workers(8)))
    assert caught.value.hint == "suitable PEs: rr, fill"


@pytest.mark.parametrize(("jsv", "changes"), [("script:/opt/jsv.sh", True), ("none", False), ("", False)])
def test_what_a_jsv_may_change_is_no_reason_to_refuse(jsv: str, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jsv_url, qconf is refused. Names that do not exist are refused before the JSV is called."""
    forced = Answer(1, "", NO_QUEUES.format("does not request 'forced' resource \"h_rt\" of queue instance all.q@n4"))
    unknown = Answer(1, "", REFUSED.format('job rejected: the requested parallel environment "rx" does not exist'))

    def run(argv: list[str], *, limit: float, text: str = "") -> Answer:
        if argv[1] == "-sconf" and jsv:
            return Answer(0, f"qmaster_params               none\njsv_url                      {jsv}\n", "")
        return Commands(v=unknown if "rx" in text else forced)(argv, limit=limit, text=SCRIPT if text else "")

    monkeypatch.setattr(sge, "run", run)
    if not changes:
        with pytest.raises(SpecError, match="every job must ask for a walltime"):
            advice.check(plan("sge", name="x"))
    else:
        (note,) = advice.check(plan("sge", name="x"))
        assert note.startswith("time: every job must ask for a walltime (h_rt is FORCED); it is submitted, since a JSV")
        with pytest.raises(SpecError, match="PE `rx` does not exist"):
            advice.check(plan("sge", name="x", pe="rx").replace(script="#$ -pe rx 1\n"))


RR = """\
pe_name            rr
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $round_robin
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""
QUEUES = """\
qname                 short.q
hostlist              n1 n2
pe_list               rr
h_rt                  0:10:0
h_vmem                INFINITY
qname                 all.q
hostlist              @allhosts
seq_no                0,[n1=0],[n2=1],[n3=2],[n4=3]
pe_list               make smp,[@gpu=mpi \\
                      rr],[n4=NONE]
h_rt                  1:00:00,[n1=2:0:0]
qname                 long.q
pe_list               NONE
h_rt                  1:00:00,[n1=INFINITY]
"""
COMPLEX = """\
#name               shortcut   type      relop requestable consumable default  urgency 
#--------------------------------------------------------------------------------------
gpu                 g          INT       <=    YES         YES        0        0
h_rt                h_rt       TIME      <=    YES         NO         0:0:0    0
# >#< starts a comment but comments are not saved across edits --------
"""  # noqa: W291 - as qconf prints it


def test_parse_pe() -> None:
    assert offers.parse_pe(RR) == PE("rr", 999, True, "$round_robin")
    other = RR.replace("$round_robin", "2").replace("TRUE", "FALSE").replace("user_lists         NONE", "user_lists ml")
    assert offers.parse_pe(other) == PE("rr", 999, False, "2", "ml")
    assert offers.parse_pe("") is None
    assert offers.parse_pe(f"Welcome to the grid\n{RR}") == offers.parse_pe(RR)
    odd = RR.replace("999", "9" * 5000).replace("$round_robin", "²")
    assert offers.parse_pe(odd) == PE("rr", 0, True, "²")
    # Open Cluster Scheduler's has more lines (its documentation; not seen live)
    assert offers.parse_pe(RR + "ignore_slave_requests_on_master_host   FALSE\n") == offers.parse_pe(RR)


@pytest.mark.parametrize(
    ("rule", "hosts"), [("$pe_slots", 1), ("$fill_up", 8), ("$round_robin", 8), ("4", 2), ("3", 3), ("8", 1)]
)
def test_most_hosts_of_a_parallel_environment(rule: str, hosts: int) -> None:
    assert PE("x", 99, True, rule).hosts(8) == hosts


def test_parse_queues() -> None:
    assert offers.parse_queues(QUEUES) == [
        Queue("short.q", frozenset({"rr"}), 600),
        Queue("all.q", frozenset({"make", "smp", "mpi", "rr"}), 7200),
        Queue("long.q", frozenset(), None),
    ]


def test_parse_resources() -> None:
    assert offers.parse_resources(COMPLEX) == [
        Resource("gpu", "g", "YES", "INT"),
        Resource("h_rt", "h_rt", "NO", "TIME"),
    ]
    # Univa's and Open Cluster Scheduler's (their documentation; not seen live); Univa's has a column more
    assert offers.parse_resources("gpu  gpu  RSMAP  <=  YES  HOST  0  0  NO\n") == [
        Resource("gpu", "gpu", "HOST", "RSMAP")
    ]


def test_cell_is_unknown_when_qconf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = Answer(1, "", 'denied: host "login" is not an admin host\n')
    monkeypatch.setattr(sge, "run", lambda argv, *, limit: denied)
    assert offers.known_pe("rr") is None
    assert (offers.known_pes(), offers.known_queues(), offers.known_resources(), offers.known_names("-ss")) == (
        [],
        [],
        [],
        [],
    )


def test_parallel_environments_and_queues_are_listed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(argv: list[str], *, limit: float) -> Answer:
        texts = {"-spl": "rr\nxx\n", "-sql": "short.q\nall.q\n", "-sp": RR if argv[2:] == ["rr"] else ""}
        texts["-sq"] = QUEUES if argv[2:] == ["short.q,all.q"] else ""
        return Answer(0, texts[argv[1]], "")

    monkeypatch.setattr(sge, "run", answers)
    assert [pe.name for pe in offers.known_pes()] == ["rr"]
    assert [queue.name for queue in offers.known_queues()] == ["short.q", "all.q", "long.q"]


def test_spare_hosts_count_as_hosts_of_a_fixed_allocation_rule() -> None:
    spare: dict[str, Any] = {"nodes": 2, "tasks_per_node": 2, "restarts": 1, "spare_nodes": 1}
    assert problem("two", **spare) == ""
    assert problem("two", **{**spare, "tasks_per_node": 4}) == (
        "PE `two` allocates 2 slots per host (allocation_rule): 12 slots are 6 hosts, not 3"
    )


@pytest.mark.parametrize(("shown", "said"), [("max_aj_instances 3", "at most 3 elements"), ("max_aj_instances 0", "")])
def test_fewer_elements_run_at_once_than_is_requested(shown: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, **_: Answer(0, f"max_aj_tasks 12\n{shown}\n", ""))
    notes = advice.check_array(of_sweep(plan("sge"), 12, 4).request)
    assert said in "".join(notes)
    assert bool(notes) == bool(said)
    with pytest.raises(SpecError, match="it has 13 elements, at most 12 are allowed") as caught:
        advice.check_array(of_sweep(plan("sge"), 13, 4).request)
    assert caught.value.why == "max_aj_tasks of this Grid Engine is 12"


def test_limits_on_arrays_are_not_known_where_qconf_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sge, "run", lambda argv, **_: Answer(1, "", "denied: host is no admin host"))
    assert advice.check_array(of_sweep(plan("sge"), 13, 4).request) == ()


# --- when a job would start

FULL = """\
Unable to run job: Job 4 (-l slots=1) cannot run in queue "n1" because it offers only hc:slots=0.000000
Job 4 cannot run in PE "rr" because it only offers 0 slots
verification: no suitable queues
Exiting.
"""
SLOTS = """\
CLUSTER QUEUE                   CQLOAD   USED    RES  AVAIL  TOTAL aoACDS  cdsuE
--------------------------------------------------------------------------------
all.q                             0.68     16      0      0     16      0      0
short.q                           -NA-      0      0      2      8      0      {}
"""


@pytest.mark.parametrize(
    ("values", "closed", "why"),
    [
        ({}, 0, "free slots: 0 of 16 in all.q, 2 of 8 in short.q"),
        ({"partition": "all.q"}, 0, 'not now (cannot run in PE "rr" because it only offers 0 slots); free slots: 0 of'),
        ({"partition": "short.q"}, 8, "the job waits until one of its queues can start jobs"),
    ],
)
def test_slots_that_are_free_are_told_where_a_job_cannot_start_now(
    values: Any, closed: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"qstat": Answer(0, SLOTS.format(closed), ""), "p": Answer(1, "", FULL), "qconf": Answer(1, "", "denied")}
    asked: list[list[str]] = []

    def run(argv: list[str], *, limit: float, text: str = "") -> Answer:
        asked.append(argv)
        return answers.get(argv[0]) or answers.get(argv[2], FOUND)

    monkeypatch.setattr(sge, "run", run)
    found = advice.estimate(plan("sge", name="x", pe="rr", **workers(4, **values)), SITE.queues)
    assert (found.start, found.never) == (None, False)
    assert why in found.why
    assert [argv[2] for argv in asked if argv[0] == "qsub"] == ["p", "v"]  # each uses up a job id


BUSY = NO_QUEUES.format('cannot run in PE "rr" because it only offers 8 slots')


@pytest.mark.parametrize(
    ("values", "verdicts", "why"),
    [
        (
            {"pe": "smp", "nodes": 2, "tasks_per_node": 1},  # which qsub would put on one host
            {},
            "PE `smp` allocates slots on one host only (allocation_rule $pe_slots), the job needs 2 hosts",
        ),
        (
            workers(9, pe="rr", gpus_per_task=1),
            dict.fromkeys("pv", Answer(1, "", BUSY)),
            "9 slots with 1 GPU each requested, PE `rr` offers 8",
        ),
        (
            workers(9, pe="rr", account="ml"),
            {"p": Answer(1, "", BUSY), "v": Answer(1, "", REFUSED.format("denied: no access"))},
            "Grid Engine would refuse this job: denied: no access",
        ),
    ],
)
def test_what_submit_refuses_never_starts(
    values: Any, verdicts: dict[str, Answer], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sge, "run", commands := Commands(**verdicts))
    made = plan("sge", name="x", **values)
    found = advice.estimate(made, SITE.queues)
    assert (found.start, found.never, found.why) == (None, True, why)
    asked = [argv[2] for argv in commands.calls if argv[0] == "qsub"]
    assert asked == [*"pv"[: 1 + bool(verdicts)]]  # each uses up a job id
    with pytest.raises((SpecError, SchedulerError), match=re.escape(why)):
        advice.check(made)


def test_qmaster_that_does_not_answer_is_no_reason_why_a_job_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], *, limit: float, text: str = "") -> Answer:
        if argv[2] == "v":
            raise sge.no_answer("got send error")
        return Answer(1, "", BUSY)

    monkeypatch.setattr(sge, "run", run)
    with pytest.raises(SchedulerError, match="does not answer"):
        advice.estimate(plan("sge", name="x", pe="rr", **workers(9)), SITE.queues)


def test_wrong_names_of_a_parallel_environment_or_project_are_refused_as_by_submit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = 'Unable to run job: Job was rejected because the requested {} "nosuch" does not exist.\nExiting.\n'
    monkeypatch.setattr("gridtf.schedulers.sge.offers.known_cell", lambda: SITE)
    for option, kind in (("pe", "parallel environment"), ("account", "project")):
        monkeypatch.setattr(sge, "run", lambda argv, limit, text="", kind=kind: Answer(1, "", said.format(kind)))
        with pytest.raises(UsageError, match="`nosuch` does not exist") as caught:
            advice.estimate(plan("sge", name="x", **{"pe": "rr", option: "nosuch"}, **workers(4)), SITE.queues)
        assert option in str(caught.value)


def test_verified_job_starts_now_and_a_wrong_name_never(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("sge", name="x", pe="rr", **workers(4))
    monkeypatch.setattr(sge, "run", Commands())
    found = advice.estimate(made, SITE.queues)
    assert found.start is not None
    for later in ("-a 203001010000", "-h", "-hold_jid 4711"):  # which -w p does not heed
        found = advice.estimate(plan("sge", name="x", pe="rr", native=[later], **workers(4)), SITE.queues)
        assert (found.start, found.never, found.why) == (None, False, f"not before {later} allows it")
    unknown = 'Unable to run job: Job was rejected because job requests unknown queue "x.q"\nExiting.\n'
    monkeypatch.setattr(sge, "run", Commands(**dict.fromkeys("pv", Answer(1, "", unknown))))
    assert advice.estimate(made, SITE.queues).why == "queue `x.q` does not exist"
    monkeypatch.setattr(sge, "run", Commands(**dict.fromkeys("pv", Answer(1, "", K80))))
    found = advice.estimate(made, SITE.queues)
    assert found.never
    assert found.why == "no host has gpu_type=k80"


def test_queues_tell_where_a_job_can_never_run() -> None:
    def foreseen(**values: Any) -> str:
        found = advice.foreseen(plan("sge", name="x", **workers(4, **values)), SITE.queues)
        return found.why if found and found.never else ""

    assert foreseen(pe="rr", partition="short.q", time="1h").startswith("01:00:00 is more than queue short.q allows")
    assert "does not offer PE `fill`" in foreseen(pe="fill", partition="short.q", time="5m")
    assert foreseen(pe="rr", time="1h") == ""
    few = foreseen(pe="rr", nodes=4, tasks={}, tasks_per_node=1, nodelist=["n1", "n2"])
    assert few == "the job needs 4 hosts, and nodelist leaves 2"
    assert foreseen(pe="rr", nodes=4, tasks={}, tasks_per_node=1, nodelist=["n?"]) == ""  # not known yet
