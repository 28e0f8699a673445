"""When a job would start elsewhere, and what `auto` chooses: a site with known answers, and a clock that stands."""

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
        return [Place(name, 8, self.limits.get(name), hidden=name in self.hidden) for name in self.waits]

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


def render(*words: str, capsys: Captured) -> tuple[dict[str, Any], list[str]]:
    """What `gridtf render` makes of a job: its values with their sources, and the notes before them."""
    assert main(["render", "--json", *words, "--", "python", "x.py"]) == 0
    captured = capsys.readouterr()
    made = json.loads(captured.out)
    return {key: (made["spec"].get(key), source) for key, source in made["sources"].items()}, captured.err.splitlines()


def refused(*words: str, capsys: Captured) -> str:
    assert main(["render", *words, "--", "python", "x.py"]) == 2
    return capsys.readouterr().err


def rows(*words: str, capsys: Captured) -> list[dict[str, Any]]:
    assert main(["when", "--json", *words]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def clock(seconds: float) -> str:
    return time.strftime("%H:%M", time.localtime(seconds))


def test_partition_auto_is_the_one_that_starts_first_and_the_dry_run_says_why(site: Site, capsys: Captured) -> None:
    found, notes = render("--partition", "auto", "--nodes", "1", "--time", "30m", capsys=capsys)
    value, source = found["partition"]
    assert value == "short"
    assert source.startswith("--partition auto, chosen of 3: starts in 10 min 0 s (")
    assert "ends by" in source
    assert notes == []


def test_ties_go_to_the_site_s_order_and_a_start_now_ends_the_questions(site: Site, capsys: Captured) -> None:
    site.waits = {"gpu": 500, "short": 500, "cpu": 500}
    assert render("--partition", "auto", "--time", "30m", capsys=capsys)[0]["partition"][0] == "gpu"
    assert render("--partition", "auto:cpu,short", "--time", "30m", capsys=capsys)[0]["partition"][0] == "cpu"
    site.waits, site.asked = {"gpu": 500, "short": 1, "cpu": 0}, []
    value, source = render("--partition", "auto", "--time", "20m", capsys=capsys)[0]["partition"]
    assert value == "short"
    assert "the first of 3 that starts now" in source
    assert [name for name, *_ in site.asked] == ["gpu", "short"]


def test_only_the_partitions_listed_are_chosen_from(site: Site, capsys: Captured) -> None:
    found, _ = render("--partition", "auto:gpu,old", "--time", "30m", capsys=capsys)
    assert found["partition"][0] == "gpu"
    assert {name for name, *_ in site.asked} == {"gpu", "old"}


def test_hidden_partitions_are_asked_about_only_by_name(site: Site, capsys: Captured) -> None:
    site.hidden = {"short"}
    assert {row["partition"] for row in rows("--nodes", "1", capsys=capsys)} == {"gpu", "old"}
    assert {row["partition"] for row in rows("--partition", "short,gpu", capsys=capsys)} == {"short", "gpu"}
    assert render("--partition", "auto", "--time", "30m", capsys=capsys)[0]["partition"][0] == "gpu"


def test_where_no_start_is_known_the_first_partition_is_taken_and_a_note_says_so(site: Site, capsys: Captured) -> None:
    site.waits = {"gpu": None, "old": None}
    found, notes = render("--partition", "auto", "--time", "30m", capsys=capsys)
    assert found["partition"] == ("gpu", "--partition auto, the first, since no start is known")
    assert notes == ["gridtf: partition gpu is the first, since no start is known: nobody knows"]
    more = ("--continue", "2", "--checkpoint-before", "5m")
    assert "time: auto cannot choose: no start is known (nobody knows)" in refused(
        "--time", "auto", *more, capsys=capsys
    )


def test_where_no_partition_can_run_the_job_each_one_s_reason_is_told(site: Site, capsys: Captured) -> None:
    site.limits = dict.fromkeys(site.waits, HOUR)
    error = refused("--partition", "auto", "--time", "2h", capsys=capsys)
    assert "partition: nothing that auto may choose can run the job\n  gpu: too long; short: too long" in error


def test_time_auto_is_the_longest_of_the_walltimes_that_start_first(site: Site, capsys: Captured) -> None:
    site.waits, site.limits = {"gpu": 3 * HOUR}, {"gpu": 48 * HOUR}
    site.by_shape = {(1, hours * HOUR): 100 for hours in (1, 2, 4)}
    more = ("--nodes", "1", "--continue", "9", "--checkpoint-before", "10m")
    found, _ = render("--time", "auto", *more, capsys=capsys)
    assert found["time"][0] == "04:00:00"
    assert site.asked[0] == ("gpu", 1, 48 * HOUR)
    assert "auto is for jobs that go on after their walltime" in refused("--time", "auto", capsys=capsys)


def test_listed_walltimes_are_tried_from_the_longest_on(site: Site, capsys: Captured) -> None:
    more = ("--partition", "gpu", "--continue", "2", "--checkpoint-before", "5m")
    assert render("--time", "auto:1h,8h,1h", *more, capsys=capsys)[0]["time"][0] == "8h"
    assert site.asked == [("gpu", 1, 8 * HOUR), ("gpu", 1, HOUR)]


@pytest.mark.parametrize(
    ("flag", "values", "wrong"),
    [("--nodes", "2,x", "'x' is not a node count"), ("--time", "1h,x", "'x' is not a walltime")],
)
def test_a_wrong_value_of_a_list_is_refused(site: Site, flag: str, values: str, wrong: str, capsys: Captured) -> None:
    assert main(["when", flag, values]) == 2
    assert f"{flag[2:]}: {wrong}" in capsys.readouterr().err
    assert not site.asked


def test_time_auto_stays_within_the_site_s_limits(
    site: Site, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text('[limits]\nmax_time = "3h"\nrequire = ["time"]\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(tmp_path / "site.toml"))
    site.waits = {"gpu": 0}
    found, _ = render("--time", "auto", "--continue", "9", "--checkpoint-before", "10m", capsys=capsys)
    assert found["time"][0] == "02:00:00"
    assert [walltime for *_, walltime in site.asked] == [2 * HOUR]


@pytest.mark.thorough
def test_nodes_auto_is_what_should_end_first_by_a_past_job(
    site: Site, capsys: Captured, rough_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = recordedruns.make(rough_path / "past", workers=2, minutes=60.0)  # on two hosts
    site.by_shape = {(1, 4 * HOUR): 0, (2, 4 * HOUR): 0, (4, 4 * HOUR): 10 * MINUTE, (8, 4 * HOUR): 5 * HOUR}
    words = ("--partition", "gpu", "--time", "4h", "--like", str(past.path))
    found, _ = render("--nodes", "auto", *words, capsys=capsys)
    assert found["nodes"][0] == 4  # 10 + 30 minutes, where two hosts need 60, and eight 300 + 15
    assert "chosen of 4: starts in 10 min 0 s" in found["nodes"][1]
    assert "should end by" in found["nodes"][1]
    found, _ = render("--nodes", "auto:1-2", *words, capsys=capsys)
    assert found["nodes"][0] == 2
    # one host would need two hours, more than its walltime
    answers.outdate(site, JobIdentity("1"))
    site.by_shape = {(1, 80 * MINUTE): 0, (2, 80 * MINUTE): 9 * HOUR}
    words = (*words[:2], "--time", "80", *words[4:])
    assert render("--nodes", "auto:1-2", *words, capsys=capsys)[0]["nodes"][0] == 2
    error = refused("--nodes", "auto", "--time", "1h", capsys=capsys)
    assert "nodes: auto needs a past job's runtime: it is not known how long the job runs" in error


def test_a_partition_whose_table_has_another_account_is_not_chosen(
    site: Site, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text('[partitions.short]\naccount = "rich"\n[partitions.gpu]\ncpus_per_task = 3\n')
    monkeypatch.setenv("GRIDTF_SITE_CONFIG", str(tmp_path / "site.toml"))
    found, _ = render("--partition", "auto", "--time", "30m", capsys=capsys)
    assert found["partition"][0] == "gpu"
    assert found["cpus_per_task"][0] == 3  # the table of the partition that is chosen counts


def test_auto_in_a_job_file_is_chosen_when_it_is_submitted_and_never_recorded(
    site: Site, capsys: Captured, tmp_path: Path
) -> None:
    Path("gridtf.toml").write_text('command = ["x"]\npartition = "auto"\ntime = "30m"\nrun_dir = "run"\n')
    assert main(["submit", "--quiet"]) == 0
    record = json.loads((tmp_path / "run/job.json").read_text())
    assert record["spec"]["partition"] == "short"
    assert record["sources"]["partition"].startswith("gridtf.toml:2 auto, chosen of 3: starts in")
    capsys.readouterr()
    Path("steps.toml").write_text('command = ["x"]\npartition = "auto"\n[steps.a]\n[steps.b]\n')
    assert main(["render", "steps.toml"]) == 2
    assert "partition: auto is for one job, and steps.toml has [steps]" in capsys.readouterr().err


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
    error = refused("--partition", "auto:gpu,shrt", "--time", "30m", capsys=capsys)
    assert "partition: the site has no partition or queue 'shrt'" in error
    assert "did you mean short?" in error
    assert site.asked == []


def test_starts_at_once_compare_by_their_ends_and_not_by_the_moment_of_the_answer(site: Site, capsys: Captured) -> None:
    site.by_shape = {(1, 300): 3.0, (2, 300): 0.0}
    assert main(["when", "--partition", "gpu", "--nodes", "1,2", "--time", "5m"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["1", "2"]


def test_submission_tells_what_was_chosen(site: Site, capsys: Captured) -> None:
    assert main(["submit", "--partition", "auto", "--time", "30m", "--", "true"]) == 0
    assert "gridtf: partition is short: --partition auto, chosen of 3: starts in 10 min" in capsys.readouterr().err


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
    assert counts == {"read": 1, "site's file": 1, "advice": 3}, "without a number of hosts, with 2, and with 4"


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
        text = json.dumps({question: {**row, "start": "soon"} for question, row in known.items()})
    path.write_bytes(text.encode("latin-1"))
    assert len(rows("--time", "10m", capsys=capsys)) == 3
    assert len(site.asked) == 6


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
    found = rows("--scheduler", "local", "--time", "1h", "--partition", "auto", "--", "x", capsys=capsys)
    assert [(row["why"], row["never"]) for row in found] == [("", False)]
    assert abs(found[0]["start"] - time.time()) < 60
    values, _ = render("--scheduler", "local", "--partition", "auto", capsys=capsys)
    assert values.get("partition", (None,))[0] is None
