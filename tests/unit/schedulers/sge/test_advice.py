"""What a cell would refuse, and what it offers. What qsub and qconf print was recorded on Son of Grid Engine 8.1.9,
unless a line says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from gridtf.errors import SchedulerError, SpecError
from gridtf.schedulers.batch import Answer
from gridtf.schedulers.sge import GridEngine, advice, scheduler
from gridtf.schedulers.sge.advice import PE, Cell, Queue, Requested, Resource
from tests.support.rendering import plan

RULES = {"rr": "$round_robin", "fill": "$fill_up", "two": "2", "smp": "$pe_slots", "loose": "$round_robin"}
PES = {name: PE(name, 999, name != "loose", rule) for name, rule in RULES.items()}
SITE = Cell(
    pes=[*PES.values(), PE("vip", 99, True, "$fill_up", "ml")],
    suitable=["rr", "fill"],
    queues=[Queue("all.q", frozenset({"rr", "fill", "two", "smp"}), None), Queue("short.q", frozenset({"rr"}), 600)],
    resources=[Resource("gpu", "gpu", "INT", "YES"), Resource("mem_free", "mf", "MEMORY", "NO")],
    projects=["ml"],
    hosts=["n1", "n2"],
)
REFUSED = "Unable to run job: {}\nExiting.\n"
NO_QUEUES = "Unable to run job: Job 33 {}\nverification: no suitable queues\nExiting.\n"
FOUND = Answer(0, "verification: found suitable queue(s)\n", "")


def workers(count: int, **more: Any) -> dict[str, Any]:
    return {"tasks": {"worker": {"count": count}}, **more}


def requested(**values: Any) -> Requested:
    made = plan("sge", name="x", **values)
    return Requested.of(made.request, made.spec)


def problem(pe: str, **values: Any) -> SpecError | None:
    return advice.pe_problem(PES[pe], requested(pe=pe, **values))


def refused(said: str, known: Cell = SITE, **values: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        advice.refuse(Answer(1, "", said), requested(**values), known)
    assert "\n" not in caught.value.problem + caught.value.why + caught.value.hint
    return caught.value


def test_what_is_asked_for() -> None:
    found = requested(**workers(8, pe="mpi*", time="1h", gpus_per_task=2, partition="a.q,b.q@@gpu", account="ml"))
    assert (found.pe, found.slots.low, found.slots.high) == ("mpi*", 8, 8)
    assert found.resources == {"gpu": "2", "h_rt": "1:00:00"}
    assert found.queues == ("a.q", "b.q@@gpu")
    keys = [found.key(option) for option in ("pe", "slots", "gpu", "h_rt", "q", "P", "x")]
    assert keys == ["pe", "tasks", "gpus_per_task", "time", "partition", "account", "native"]


def test_the_users_own_options_are_to_blame_for_what_they_ask() -> None:
    found = requested(pe="rr", native=["-pe own 4-", "-soft", "-l big", "-hard -l gpu=1,h=n1"])
    assert (found.pe, found.slots.low, found.slots.high) == ("own", 4, 9_999_999)
    assert found.resources == {"gpu": "1", "h": "n1"}
    assert [found.key(option) for option in ("pe", "slots", "gpu")] == ["native"] * 3


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
def test_what_will_do(pe: str, values: dict[str, Any]) -> None:
    assert problem(pe, **values) is None


@pytest.mark.parametrize(
    ("pe", "values", "said"),
    [
        ("loose", workers(2), "PE `loose` does not let gridtf start tasks on other hosts (control_slaves FALSE)"),
        ("smp", {"nodes": 2}, "gives a job slots of one host only (allocation_rule $pe_slots), not of 2"),
        ("two", workers(3), "gives 2 slots on every host (allocation_rule): 3 is no multiple"),
        ("two", {"slots": "3-3"}, "3 is no multiple"),
        ("two", {"nodes": 2, "tasks_per_node": 4}, "8 slots are 4 hosts, not 2"),
        ("two", {"nodes": 8, "tasks_per_node": 1}, "8 slots are 4 hosts, not 8"),
        ("two", workers(4, nodes=2, cpus_per_task=2), "8 slots are 4 hosts, not 2"),
        ("two", workers(4, slots=8, tasks_per_node=2), "2 tasks a host need 4"),
        ("rr", workers(1000), "has 999 slots in all, 1000 are asked for"),
    ],
)
def test_what_will_never_do(pe: str, values: dict[str, Any], said: str) -> None:
    error = problem(pe, **values)
    assert error is not None
    assert said in error.problem
    assert error.key == "pe"


def test_of_several_one_that_does_is_enough() -> None:
    want = requested(pe="*", **workers(8))
    with pytest.raises(SpecError, match="loose"):
        advice.check_pes([PES["loose"]], want)
    assert advice.check_pes([PES["rr"]], want) == []
    (note,) = advice.check_pes([PES["rr"], PES["loose"]], want)
    assert "may choose" in note


@pytest.mark.parametrize("consumable", ["JOB", "HOST"])  # HOST is Univa's and Open Cluster Scheduler's: not seen live
def test_gpus_that_do_not_count_by_slot(consumable: str) -> None:
    known = [Resource("gpu", "gpu", "RSMAP", consumable)]
    with pytest.raises(SpecError, match="counts for") as caught:
        advice.check_counting(known, requested(pe="rr", gpus_per_task=1, **workers(8)))
    assert caught.value.key == "gpu_resource"
    assert "-l gpu=" in caught.value.hint
    assert advice.check_counting(known, requested(gpus_per_task=1)) == []


def test_gpus_that_are_not_counted_at_all() -> None:
    (note,) = advice.check_counting([Resource("gpu", "gpu", "INT", "NO")], requested(gpus_per_task=1))
    assert "not counted" in note


# --- refusals


@pytest.mark.parametrize(
    ("said", "values", "key", "what", "hint"),
    [
        (
            REFUSED.format('job rejected: the requested parallel environment "rx" does not exist'),
            workers(8, pe="rx"),
            "pe",
            "PE `rx` is not there",
            "these do: rr, fill",
        ),
        (
            REFUSED.format('Job was rejected because job requests unknown queue "al.q"'),
            {"partition": "al.q"},
            "partition",
            "queue `al.q` is not there",
            "these are: all.q, short.q",
        ),
        (
            REFUSED.format('job rejected: the requested project "mi" does not exist'),
            {"account": "mi"},
            "account",
            "project `mi` is not there",
            "these are: ml",
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
            "3 GPUs asked for, no host has more than 2",
            "",
        ),
        (
            NO_QUEUES.format('cannot run in PE "rr" because it only offers 4 slots'),
            workers(8, pe="rr", gpus_per_task=2),
            "tasks",
            "8 slots with 2 GPUs each asked for, PE `rr` offers 4",
            "these do: rr, fill",
        ),
        (
            NO_QUEUES.format('cannot run in PE "smp" because it only offers 0 slots'),
            {"pe": "smp", "slots": 8},
            "slots",
            "8 slots, and all on one host asked for, PE `smp` never offers so many",
            "",
        ),
        (
            NO_QUEUES.format('cannot run in PE "vip" because it only offers 0 slots'),
            workers(2, pe="vip"),
            "pe",
            "no queue carries PE `vip`",
            "these do: rr, fill",
        ),
        (
            NO_QUEUES.format('cannot run in PE "smp" because it only offers 0 slots'),
            workers(2, pe="smp", partition="short.q"),
            "pe",
            "queue short.q does not carry PE `smp`",
            "queue all.q carries it",
        ),
        (
            NO_QUEUES.format('(-l h_rt=3600) cannot run in queue "short.q" because of cluster queue'),
            {"partition": "short.q@n1", "time": "1h"},
            "time",
            "01:00:00 is more than queue short.q allows (00:10:00)",
            "these allow it: all.q (no limit)",
        ),
        ('qsub: invalid option argument "-bogus"\n', {"native": ["-bogus"]}, "native", "-bogus", "man qsub"),
        (REFUSED.format('attribute "gpu" is not a integer value'), {"native": ["-l gpu=x"]}, "native", "integer", ""),
        (
            "Unable to run job: job rejected: 0 is an invalid task id\nExiting.\n",
            {"native": ["-t 1-3"]},
            "native",
            "0 is an invalid task id",
            "",
        ),
    ],
)
def test_whose_fault_it_is(said: str, values: dict[str, Any], key: str, what: str, hint: str) -> None:
    error = refused(said, **values)
    assert error.key == key
    assert what in error.problem
    assert hint in error.hint


def test_a_resource_for_gpus_that_is_not_there() -> None:
    made = requested(gpus_per_task=1, gpu_resource="ngpus")
    with pytest.raises(SpecError) as caught:
        advice.refuse(Answer(1, "", REFUSED.format('unknown resource "ngpus"')), made, SITE)
    assert caught.value.key == "gpu_resource"
    assert caught.value.hint == "name it with --gpu-resource; these may be it: gpu"


def test_a_parallel_environment_for_some_users() -> None:
    known = Cell(pes=SITE.pes, queues=[Queue("all.q", frozenset({"vip"}), None)])
    error = refused(
        NO_QUEUES.format('cannot run in PE "vip" because it only offers 0 slots'), known, **workers(2, pe="vip")
    )
    assert (error.key, error.problem) == ("pe", "PE `vip` is only for users in ml")


def test_without_qconf_qsubs_own_words_have_to_do() -> None:
    said = REFUSED.format('job rejected: the requested parallel environment "rx" does not exist')
    error = refused(said, Cell(), **workers(8, pe="rx"))
    assert error.problem == "PE `rx` is not there"
    assert "administrators" in error.hint
    said = NO_QUEUES.format('cannot run in PE "rr" because it only offers 16 slots')
    assert refused(said, Cell(), **workers(17, pe="rr")).problem == "17 slots asked for, PE `rr` offers 16"


def test_a_host_that_may_not_submit() -> None:
    said = REFUSED.format('denied: host "login" is not a submit host')
    with pytest.raises(SchedulerError, match='submitted from here: denied: host "login"') as caught:
        advice.refuse(Answer(1, "", said), requested(), SITE)
    assert caught.value.hint == "submit from one of: n1, n2"


def test_other_refusals_in_qsubs_words() -> None:
    said = REFUSED.format("job rejected: your user id 0 is lower than minimum user id 1000 of cluster configuration")
    with pytest.raises(SchedulerError, match="would refuse this job: job rejected: your user id 0 is lower"):
        advice.refuse(Answer(1, "", said), requested(), SITE)


# --- asking


class Commands:
    """Answers as qsub and qconf do, and remembers what they were asked."""

    def __init__(self, **verdicts: Answer) -> None:
        self.verdicts = verdicts
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str], *, limit: float) -> Answer:
        self.asked.append(argv)
        if argv[0] == "qsub":
            return self.verdicts.get(argv[4] if argv[3] == "-pe" else argv[2], FOUND)
        if argv[1] == "-sp" and argv[2] in PES:
            one = PES[argv[2]]
            control = str(one.control_slaves).upper()
            text = f"pe_name {one.name}\nslots 999\nallocation_rule {one.rule}\ncontrol_slaves {control}\n"
            return Answer(0, text, "")
        return Answer(0, "\n".join(PES), "") if argv[1] == "-spl" else Answer(1, "", "denied\n")


def test_slots_without_a_parallel_environment_are_told_which_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan("sge", name="x", **workers(8))
    monkeypatch.setattr(GridEngine, "is_available", lambda self, environ: True)
    monkeypatch.setattr(scheduler, "run", Commands())
    fitting = [one.name for one in PES.values() if advice.pe_problem(one, requested(pe="any", **workers(8))) is None]
    assert 0 < len(fitting) < len(PES)
    with pytest.raises(SpecError) as caught:
        scheduler.directives(made)
    assert caught.value.key == "pe"
    assert caught.value.hint == f"name one with --pe; these may do: {', '.join(fitting)}"
    monkeypatch.setattr(scheduler, "run", lambda argv, limit: Answer(1, "", "denied"))
    with pytest.raises(SpecError) as caught:
        scheduler.directives(made)
    assert caught.value.hint == "name one with --pe; `qconf -spl` lists them"


def test_what_is_well_takes_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands()
    monkeypatch.setattr(scheduler, "run", commands)
    assert advice.check(plan("sge", name="x", pe="rr", **workers(8))) == ()
    assert [argv[:3] for argv in commands.asked] == [["qsub", "-w", "v"], ["qconf", "-sp", "rr"]]
    assert commands.asked[0][3].endswith("/job.sh")


def test_parallel_environments_that_would_do_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    no = Answer(1, "", NO_QUEUES.format('cannot run in PE "smp" because it only offers 4 slots'))
    monkeypatch.setattr(scheduler, "run", Commands(smp=no))
    with pytest.raises(SpecError) as caught:
        advice.check(plan("sge", name="x", pe="loose", **workers(8)))
    assert caught.value.hint == "these do: rr, fill, two"
    monkeypatch.setattr(scheduler, "run", Commands(v=no))
    with pytest.raises(SpecError, match="8 slots, and all on one host") as caught:
        advice.check(plan("sge", name="x", pe="smp", **workers(8)))
    assert caught.value.hint == "these do: rr, fill, two"


def test_resources_that_are_a_matter_of_load(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = '(-l mem_free=1M) cannot run in queue "all.q@n4" because job requests unknown resource (mem_free)'
    commands = Commands(v=Answer(1, "", NO_QUEUES.format(unknown)))
    monkeypatch.setattr(scheduler, "run", commands)
    assert advice.check(plan("sge", name="x", mem="1M")) == ()
    little = '(-l mem_free=900G) cannot run at host "n1" because it offers only hl:mem_free=22.594G'
    commands.verdicts["p"] = Answer(1, "", NO_QUEUES.format(little))
    (note,) = advice.check(plan("sge", name="x", mem="900G"))
    assert note == (
        'no host has at present what the job asks for: (-l mem_free=900G) cannot run at host "n1" '
        "because it offers only hl:mem_free=22.594G"
    )


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


def test_a_parallel_environment() -> None:
    assert advice.parse_pe(RR) == PE("rr", 999, True, "$round_robin")
    other = RR.replace("$round_robin", "2").replace("TRUE", "FALSE").replace("user_lists         NONE", "user_lists ml")
    assert advice.parse_pe(other) == PE("rr", 999, False, "2", "ml")
    assert advice.parse_pe("") is None
    assert advice.parse_pe(f"Welcome to the grid\n{RR}") == advice.parse_pe(RR)
    odd = RR.replace("999", "9" * 5000).replace("$round_robin", "²")
    assert advice.parse_pe(odd) == PE("rr", 0, True, "²")
    # Open Cluster Scheduler's has more lines (its documentation; not seen live)
    assert advice.parse_pe(RR + "ignore_slave_requests_on_master_host   FALSE\n") == advice.parse_pe(RR)


@pytest.mark.parametrize(
    ("rule", "hosts"), [("$pe_slots", 1), ("$fill_up", 8), ("$round_robin", 8), ("4", 2), ("3", 3), ("8", 1)]
)
def test_the_most_hosts_of_eight_slots(rule: str, hosts: int) -> None:
    assert PE("x", 99, True, rule).hosts(8) == hosts


def test_queues() -> None:
    assert advice.parse_queues(QUEUES) == [
        Queue("short.q", frozenset({"rr"}), 600),
        Queue("all.q", frozenset({"make", "smp", "mpi", "rr"}), 7200),
        Queue("long.q", frozenset(), None),
    ]


def test_resources() -> None:
    assert advice.parse_resources(COMPLEX) == [
        Resource("gpu", "g", "INT", "YES"),
        Resource("h_rt", "h_rt", "TIME", "NO"),
    ]
    # Univa's and Open Cluster Scheduler's (their documentation; not seen live); Univa's has a column more
    assert advice.parse_resources("gpu  gpu  RSMAP  <=  YES  HOST  0  0  NO\n") == [
        Resource("gpu", "gpu", "RSMAP", "HOST")
    ]


def test_where_qconf_may_not_be_asked_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = Answer(1, "", 'denied: host "login" is not an admin host\n')
    monkeypatch.setattr(scheduler, "run", lambda argv, *, limit: denied)
    assert advice.known_pe("rr") is None
    assert (advice.known_pes(), advice.known_queues(), advice.known_resources(), advice.known_names("-ss")) == (
        [],
        [],
        [],
        [],
    )


def test_all_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(argv: list[str], *, limit: float) -> Answer:
        texts = {"-spl": "rr\nxx\n", "-sql": "short.q\nall.q\n", "-sp": RR if argv[2:] == ["rr"] else ""}
        texts["-sq"] = QUEUES if argv[2:] == ["short.q,all.q"] else ""
        return Answer(0, texts[argv[1]], "")

    monkeypatch.setattr(scheduler, "run", answers)
    assert [one.name for one in advice.known_pes()] == ["rr"]
    assert [one.name for one in advice.known_queues()] == ["short.q", "all.q", "long.q"]
