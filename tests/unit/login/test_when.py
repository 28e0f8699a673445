"""When a job would start elsewhere: a site with known answers, and a clock that stands."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gridtf import schedulers
from gridtf.cli import main
from gridtf.jobspec import config
from gridtf.login import like
from gridtf.report.advice import Advised
from gridtf.run import hosthistory
from gridtf.schedulers import answers
from gridtf.schedulers.api import Estimate, JobIdentity, JobStatus, Place, Plan
from gridtf.states import JobState
from tests.support import recordedruns
from tests.support.scheduler import FakeScheduler

Captured = pytest.CaptureFixture[str]
MINUTE, HOUR = 60, 3600


class Site(FakeScheduler):
    """A scheduler with partitions: gpu is the default, and each starts a job after so many seconds; None: unknown."""

    options = schedulers.get("slurm").options

    def __init__(self) -> None:
        super().__init__()
        self.now = time.mktime((*time.localtime()[:3], 12, 0, 0, 0, 0, -1))  # what starts in hours starts today
        self.waits: dict[str, float | None] = {"gpu": 2 * HOUR, "short": 600, "old": None}
        self.limits: dict[str, int | None] = {"short": HOUR}
        self.hidden: set[str] = set()
        self.by_shape: dict[tuple[int, int | None], float] = {}
        self.looks = 0
        self.asked: list[tuple[str, int, int | None]] = []

    def server(self, job: JobIdentity, environ: object) -> str:
        return "site"

    def with_site(self, plan: Plan) -> Plan:
        self.looks += plan.site is None
        return plan.replace(site="of the site")

    def directives(self, plan: Plan) -> tuple[str, ...]:
        return (f"{plan.spec.partition} {plan.request.nodes} {plan.request.walltime} {plan.request.gpus_per_node}",)

    def places(self) -> Sequence[Place]:
        return [Place(name, hidden=name in self.hidden) for name in self.waits]

    def foreseen(self, plan: Plan, places: Sequence[Place]) -> Estimate | None:
        limit = self.limits.get(plan.spec.partition or "")
        return Estimate(why="too long", never=True) if limit and (plan.request.walltime or 0) > limit else None

    def estimate(self, plan: Plan, places: Sequence[Place]) -> Estimate:
        name, nodes, walltime = plan.spec.partition or "gpu", plan.request.nodes[0], plan.request.walltime
        self.asked.append((name, nodes, walltime))
        wait = self.by_shape.get((nodes, walltime), self.waits.get(name))
        return Estimate(why="nobody knows") if wait is None else Estimate(self.now + wait)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Site:
    made = Site()
    monkeypatch.setattr(schedulers, "get", lambda name: made)
    monkeypatch.setattr(schedulers, "to_submit_to", lambda environ: "slurm")
    monkeypatch.setattr("time.time", lambda: made.now)
    monkeypatch.chdir(tmp_path)
    return made


def rows(*words: str, capsys: Captured) -> list[dict[str, Any]]:
    assert main(["when", "--json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


def test_hidden_partitions_are_asked_about_only_by_name(site: Site, capsys: Captured) -> None:
    site.hidden = {"short"}
    assert {row["partition"] for row in rows("--nodes", "1", capsys=capsys)} == {"gpu", "old"}
    assert {row["partition"] for row in rows("--partition", "short,gpu", capsys=capsys)} == {"short", "gpu"}


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ('partition = "auto"', "name several, such as short,long: the first with room is taken"),
        ('partition = "auto:gpu,old"', "name several, such as gpu,old: the first with room is taken"),
        ('nodes = "auto:2,4"', "write the number that ends first by `gridtf when --nodes 2,4 --like JOB`"),
        ('time = "auto"', "choose by `gridtf when --time 1h,8h`; on Slurm "),
    ],
)
def test_auto_is_refused_with_what_to_write_instead(site: Site, capsys: Captured, line: str, instead: str) -> None:
    Path("gridtf.toml").write_text(f'command = ["x"]\n{line}\n')
    for command in ("submit", "render", "when"):
        assert main([command, "gridtf.toml"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"gridtf: gridtf.toml:2: {line.split()[0]}: gridtf chooses no value for auto")
        assert instead in error


def test_a_job_that_auto_was_chosen_for_is_submitted_again_with_what_was_chosen(site: Site, capsys: Captured) -> None:
    assert main(["submit", "--quiet", "--partition", "old", "--run-dir", "one", "--time", "5m", "--", "x"]) == 0
    record = json.loads(Path("one/job.json").read_text())
    record["sources"]["partition"] = "--partition auto, chosen of 3: starts in 5 min 0 s (12:05)"
    Path("one/job.json").write_text(json.dumps(record))
    site.states = [JobStatus(JobState.FAILED)]
    for command in (["rerun", "one"], ["resume", "one"]):
        assert main(command) == 0, capsys.readouterr().err
    new = [json.loads(path.read_text())["spec"]["partition"] for path in Path().glob("*/job.json")]
    assert new == ["old"] * 3


def test_a_file_with_steps_is_asked_about_its_first(site: Site, capsys: Captured) -> None:
    Path("gridtf.toml").write_text('command = ["x"]\ntime = "30m"\n[steps.a]\n[steps.b]\n')
    assert main(["when", "gridtf.toml"]) == 0
    assert "gridtf: gridtf.toml has [steps]: the rows are about the first, a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "values", "wrong"),
    [
        ("--nodes", "2,x", "'x' is not a node count"),
        ("--time", "1h,x", "'x' is not a walltime"),
        ("--time", " ", "' ' has no value"),
        ("--partition", ",", "',' has no value"),
    ],
)
def test_a_wrong_value_of_a_list_is_refused(site: Site, flag: str, values: str, wrong: str, capsys: Captured) -> None:
    assert main(["when", flag, values]) == 2
    assert f"{flag[2:]}: {wrong}" in capsys.readouterr().err
    assert not site.asked


def test_table_of_a_job_in_all_partitions_and_shapes(site: Site, capsys: Captured) -> None:
    found = rows("--nodes", "2,4", "--time", "30m,2h", "--gpus-per-node", "4", capsys=capsys)
    assert len(found) == 12
    assert [row["partition"] for row in found[:4]] == ["short", "short", "gpu", "gpu"]
    assert found[0]["start"] == pytest.approx(site.now + 600)
    assert found[0]["latest"] == pytest.approx(site.now + 600 + 30 * MINUTE)
    assert {row["hours"][0] for row in found if row["nodes"] == "2"} == {4.0, 16.0}
    assert sum(row["never"] for row in found) == 2
    assert main(["when", "--nodes", "2-4", "--time", "30m"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["PARTITION", "NODES", "WALLTIME", "LATEST", "END", "USES", "START"]
    assert lines[1].split()[:3] == ["short", "2-4", "00:30:00"]
    assert lines[1].endswith(f"in 10 min 0 s ({clock(site.now + 600)})")
    assert lines[3].endswith("unknown: nobody knows")


def test_like_tells_when_it_should_end_and_on_what_that_rests(site: Site, capsys: Captured, rough_path: Path) -> None:
    past = recordedruns.make(rough_path / "past", workers=2, minutes=60.0)
    words = ("--nodes", "1,2,4", "--time", "3h", "--partition", "gpu", "--like", str(past.path))
    found = {row["nodes"]: row["expected"] - row["start"] for row in rows(*words, capsys=capsys)}
    assert found["2"] == pytest.approx(HOUR, rel=0.02)
    assert (found["1"], found["4"]) == (pytest.approx(2 * found["2"]), pytest.approx(found["2"] / 2))
    assert main(["when", *words]) == 0
    assert "its rate is taken to grow with the hosts" in capsys.readouterr().err


def test_misspelt_partition_in_a_list_is_refused(site: Site, capsys: Captured) -> None:
    assert main(["when", "--partition", "gpu,shrt", "--time", "30m"]) == 2
    error = capsys.readouterr().err
    assert "partition: the site has no partition or queue 'shrt'" in error
    assert "did you mean short?" in error
    assert site.asked == []


def test_starts_at_once_compare_by_their_ends_and_not_by_the_moment_of_the_answer(site: Site, capsys: Captured) -> None:
    site.by_shape = {(1, 300): 3.0, (2, 300): 0.0}
    assert main(["when", "--partition", "gpu", "--nodes", "1,2", "--time", "5m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["1", "2"]


def test_slots_lie_on_any_number_of_hosts(
    site: Site, capsys: Captured, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Grid Engine: no number is shown, and the expected end is by the time that the past job ran."""
    monkeypatch.setattr(Site, "slots", lambda self, request: "8")
    past = recordedruns.make(rough_path / "past", workers=2, minutes=60.0)
    words = ("--partition", "gpu", "--workers", "8", "--time", "3h", "--like", str(past.path))
    (row,) = rows(*words, capsys=capsys)
    assert (row["nodes"], row["expected"] - row["start"]) == ("", pytest.approx(HOUR, rel=0.02))
    (row,) = rows(*words, "--nodes", "4", capsys=capsys)
    assert (row["nodes"], row["expected"] - row["start"]) == ("4", pytest.approx(HOUR / 2, rel=0.02))


def test_a_command_asks_twelve_questions_and_says_how_many_are_left(site: Site, capsys: Captured) -> None:
    assert main(["when", "--nodes", "1,2,3,4,5", "--time", "10m,20m,30m"]) == 0
    captured = capsys.readouterr()
    assert len(site.asked) == 12
    assert site.looks == 1, "what is known of the site serves all"
    assert "gridtf: 33 more combinations not asked about: a command asks 12 times" in captured.err
    assert len(captured.out.splitlines()) == 13


def test_what_is_the_same_for_all_combinations_is_found_out_once(
    site: Site, capsys: Captured, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice of --like for each number of hosts, the history of hosts, and what the partitions have."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*words, **named)

        return call

    def room(self: Site, plan: Plan) -> tuple[dict[str, int], int]:
        assert [place.name for place in plan.places] == ["gpu", "short", "old"], "sinfo is not asked again"
        return {f"n{number}": 1 for number in range(12)}, 4

    monkeypatch.setattr(Site, "cluster", lambda self, environ: "slurm:")
    monkeypatch.setattr(Site, "room", room)
    hosthistory.note(os.environ, [hosthistory.Finding("n1", job, site.now, "lost", "gone", "slurm:") for job in "12"])
    past = recordedruns.make(rough_path / "past", workers=2, minutes=60.0)
    monkeypatch.setattr(hosthistory, "read", counted("read", hosthistory.read))
    monkeypatch.setattr(config, "limit_of_site", counted("site's file", config.limit_of_site))
    monkeypatch.setattr(like, "Advised", counted("advice", Advised))
    words = ("--nodes", "2,4", "--time", "10m,20m", "--avoid-bad-hosts", "--like", str(past.path))
    assert len(rows(*words, capsys=capsys)) == 12
    assert counts == {"read": 1, "site's file": 2, "advice": 3}, "without a number of hosts, with 2, and with 4"


def test_answers_are_shared_for_a_minute_unless_the_user_submits(
    site: Site, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = [time.monotonic()]
    monkeypatch.setattr("time.monotonic", lambda: moments[0])
    words = ("--nodes", "1", "--time", "10m")
    first = rows(*words, capsys=capsys)
    assert len(site.asked) == 3
    moments[0] += 55
    assert rows(*words, capsys=capsys) == first
    assert rows(*words, "--name", "other", capsys=capsys) == first  # the scheduler reads the same
    assert len(site.asked) == 3
    rows(*words, "--gpus-per-node", "1", capsys=capsys)
    assert len(site.asked) == 6
    moments[0] += 10
    rows(*words, capsys=capsys)
    assert len(site.asked) == 9
    assert main(["submit", "--quiet", *words, "--", "x"]) == 0  # it may have taken what was free
    capsys.readouterr()
    rows(*words, capsys=capsys)
    assert len(site.asked) == 12


@pytest.mark.parametrize(
    "text", ["", "values", "[]", '{"a": 1', "null", '{"x": {"asked": "soon"}}', '{"x": 3}', '{"x": {}}', "\x00\xff"]
)
def test_a_damaged_file_of_answers_costs_a_question_only(site: Site, capsys: Captured, text: str) -> None:
    rows("--time", "10m", capsys=capsys)
    path = answers._estimates()
    assert path is not None
    if text == "values":
        known = json.loads(path.read_text())
        text = json.dumps({question: {**row, "answer": {"start": "soon"}} for question, row in known.items()})
    path.write_bytes(text.encode("latin-1"))
    assert len(rows("--time", "10m", capsys=capsys)) == 3
    assert len(site.asked) == 6


def test_a_start_of_which_only_the_latest_moment_is_known(
    site: Site, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "estimate", lambda self, plan, places: Estimate(self.now + 600, at_most=True))
    (row, *_) = rows("--time", "10m", capsys=capsys)
    assert (row["start"], row["at_most"]) == (site.now + 600, True)
    assert main(["when", "--partition", "gpu", "--time", "10m"]) == 0
    assert f"at most in 10 min 0 s ({clock(site.now + 600)})" in capsys.readouterr().out


def test_a_site_may_forbid_it(site: Site, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.toml").write_text("[limits]\nwhen = false\n")
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(tmp_path / "site.toml"))
    assert main(["when", "--time", "10m"]) == 1
    assert f"{tmp_path}/site.toml:2: when = false" in capsys.readouterr().err
    assert not site.asked


def test_rows_that_start_at_once_say_now_however_long_the_answers_take(
    site: Site, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(self: Site, plan: Plan, places: Sequence[Place]) -> Estimate:
        self.now += 7
        return Estimate(self.now)

    monkeypatch.setattr(Site, "estimate", slow)
    assert main(["when", "--time", "10m"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["now"] * 3


def test_a_job_that_waits_and_one_that_does_not(site: Site, capsys: Captured) -> None:
    assert main(["submit", "--quiet", "--name", "one", "--time", "10m", "--", "x"]) == 0
    site.states = [JobStatus(JobState.PENDING, "Priority", expected=site.now + 2 * HOUR)]
    capsys.readouterr()
    assert main(["when", "one"]) == 0
    assert capsys.readouterr().out == (
        f"one (101): it is expected to start in 2 h 0 min ({clock(site.now + 2 * HOUR)}): Priority\n"
    )
    answers.outdate(site, JobIdentity("101"))
    site.states = [JobStatus(JobState.PENDING, "Dependency")]
    assert main(["when", "101"]) == 0
    assert capsys.readouterr().out == "one (101): its scheduler does not tell when it starts: Dependency\n"
    answers.outdate(site, JobIdentity("101"))
    site.states = [JobStatus(JobState.RUNNING)]
    assert main(["when", "one"]) == 0
    assert "does not wait" in capsys.readouterr().out
    assert main(["when", "nosuch"]) == 2
    assert "no job" in capsys.readouterr().err
    assert main(["when", "nosuch.toml"]) == 2
    assert "nosuch.toml" in capsys.readouterr().err


def test_a_job_file_wins_over_a_job_of_its_name(site: Site, capsys: Captured) -> None:
    assert main(["submit", "--quiet", "--name", "one", "--time", "10m", "--", "x"]) == 0
    Path("one").write_text('command = ["x"]\ntime = "10m"\n')
    capsys.readouterr()
    assert main(["when", "one"]) == 0
    assert capsys.readouterr().out.startswith("PARTITION")


def test_a_sweep_is_asked_about_as_an_array(site: Site, capsys: Captured) -> None:
    request = 'time = "1h"\nnodes = 1\ngpus_per_node = 2\n'
    Path("gridtf.toml").write_text(f'command = ["{{params.lr}}"]\n{request}params.lr = 1\n[sweep]\nlr = [1, 2, 3]\n')
    assert main(["when", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["hours"] for row in found] == [[6.0, "GPU"]] * 3


def test_this_machine_starts_a_job_at_once(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = rows("--scheduler", "local", "--time", "1h", "--", "x", capsys=capsys)
    assert [(row["why"], row["never"]) for row in found] == [("", False)]
    assert abs(found[0]["start"] - time.time()) < 60
