"""Checks before a submission. Output of sbatch and sinfo was recorded on Slurm 22.05.8, unless noted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gridtf.errors import SchedulerError, SpecError
from gridtf.schedulers.commands import Answer
from gridtf.schedulers.slurm import advice
from gridtf.schedulers.slurm.advice import ComponentRequest, component_requests
from gridtf.schedulers.slurm.commands import slurm
from gridtf.schedulers.slurm.offers import parse_partitions, show_gpus, unusable_nodes
from gridtf.schedulers.slurm.query import parse_moment
from tests.support.rendering import of_sweep, plan

SINFO = """\
gpu*|up|7-00:00:00|1-infinite|4|idle|8|16000|gpu:4|n[1-4]
cpu|up|7-00:00:00|1-infinite|1|idle|8|16000|(null)|c1
short|up|30:00|1-2|4|idle|8|16000|gpu:4|n[1-4]
"""
NODES_DOWN = """\
gpu*|up|7-00:00:00|1-infinite|2|down*|8|16000|gpu:4|n[1-2]
gpu*|up|7-00:00:00|1-infinite|1|drained|8|16000|gpu:4|n3
gpu*|up|7-00:00:00|1-infinite|1|mixed|8|16000|gpu:4|n4
"""
# several types of nodes, from Slurm's documentation of GRES
MIXED = """\
big*|up|infinite|1-infinite|2|idle~|64|512000+|gpu:a100:8(S:0-1)|a[1-2]
big*|up|infinite|1-infinite|3|allocated|32|128000|gpu:v100:4(S:0),nvme:2|v[1-3]
old|drain|1:00:00|1-infinite|1|idle|16|64000|gpu:v100:2,gpu:k80:2|k1
empty|inact|infinite|1-infinite|0|n/a|0|0|(null)|
"""
SHAPE = "allocation failure: Requested node configuration is not available\n"
NO_PARTITION = "sbatch: error: invalid partition specified: {}\nallocation failure: Invalid partition name specified\n"
CLOSED = "allocation failure: Required partition not available (inactive or drain)\n"
STARTS = "sbatch: Job 1 to start at 2026-11-21T11:21:34 using 1 processors on nodes n1 in partition gpu\n"


def requests(environ: dict[str, str] | None = None, **values: Any) -> tuple[ComponentRequest, ...]:
    return component_requests(plan("slurm", name="x", **values), environ or {})


def refusal(output: str, sinfo: str = SINFO, environ: dict[str, str] | None = None, **values: Any) -> SpecError:
    code = 0 if output == STARTS else 1
    with pytest.raises(SpecError) as caught:
        advice.judge(requests(environ, **values), code, output, parse_partitions(sinfo))
    return caught.value


@pytest.mark.parametrize(
    ("values", "key", "what", "hint"),
    [
        ({"nodes": 9}, "nodes", "9 nodes requested, partition gpu has 4", "there are: gpu (4), cpu (1), short (4)"),
        ({"nodes": "5-9"}, "nodes", "5 nodes requested, partition gpu has 4", ""),
        ({"tasks": {"worker": {"count": 9}}, "tasks_per_node": 1}, "tasks", "9 nodes requested", ""),
        (
            {"nodes": 2, "partition": "cpu"},
            "nodes",
            "2 nodes requested, partition cpu has 1",
            "these partitions have enough: gpu (4), short (4)",
        ),
        (
            {"nodes": 3, "partition": "short"},
            "nodes",
            "3 nodes requested, partition short allows at most 2 a job",
            "these partitions allow it: gpu (4)",
        ),
        (
            {"gpus_per_node": 1, "partition": "cpu"},
            "gpus_per_node",
            "no node of partition cpu has GPUs",
            "these partitions have GPUs: gpu (4 each), short (4 each)",
        ),
        ({"gpus_per_task": 1, "partition": "cpu"}, "gpus_per_task", "no node of partition cpu has GPUs", ""),
        (
            {"gpus_per_node": 9},
            "gpus_per_node",
            "9 GPUs a node requested, nodes of partition gpu have 4",
            "there are: gpu (4 each), cpu (none)",
        ),
        ({"gpus_per_node": "a100:1"}, "gpus_per_node", "no node of partition gpu has a100 GPUs", "gpu (4 each)"),
        ({"cpus_per_task": 99}, "cpus_per_task", "99 CPUs a node requested, nodes of partition gpu have 8", "(8)"),
        ({"tasks_per_node": 9}, "tasks_per_node", "9 tasks a node need 9 CPUs, nodes of partition gpu have 8", ""),
        ({"mem": "900G"}, "mem", "921600 MiB of memory a node requested, nodes of partition gpu have 16000", "MiB"),
        ({"mem_per_task": "900G"}, "mem_per_task", "921600 MiB", ""),
        ({"nodes": "2-9", "native": ["-N", "--nodes=7"]}, "native", "7 nodes requested", ""),
        (
            {"gpus_per_node": 2, "tasks": {"ps": {"count": 2, "partition": "cpu", "cpus": 9}}},
            "tasks.ps.cpus",
            "9 CPUs a node requested, nodes of partition cpu have 8",
            "",
        ),
        ({"nodes": 2, "partition": "cpu,short", "gpus_per_node": 9}, "nodes", "2 nodes requested, partition cpu", ""),
    ],
)
def test_request_beyond_the_partition_is_refused_with_alternatives(
    values: dict[str, Any], key: str, what: str, hint: str
) -> None:
    error = refusal(SHAPE, **values)
    assert error.key == key
    assert what in error.problem
    assert hint in error.hint
    assert "\n" not in error.problem + error.hint


def test_refusals_of_sites_that_enforce_partition_limits() -> None:
    # with EnforcePartLimits=ALL
    assert refusal("allocation failure: Node count specification invalid\n", nodes=9).key == "nodes"
    output = "allocation failure: Requested time limit is invalid (missing or exceeds some limit)\n"
    assert refusal(output, partition="short", time="2h").key == "time"


def test_unknown_partition_is_refused() -> None:
    error = refusal(NO_PARTITION.format("gpux"), partition="gpux")
    assert (error.key, error.problem) == ("partition", "there is no partition 'gpux'")
    assert error.why == "did you mean gpu?"
    assert error.hint == "this site has: gpu (default), cpu, short"
    assert refusal(NO_PARTITION.format("x"), partition="cpu,x").problem == "there is no partition 'x'"
    assert refusal(NO_PARTITION.format("x"), native=["-p x"]).key == "native"
    assert (
        refusal(NO_PARTITION.format("x"), environ={"SBATCH_PARTITION": "x"}, partition="cpu").key == "SBATCH_PARTITION"
    )
    tasks = {"ps": {"count": 2, "partition": "cpux"}}
    assert refusal(NO_PARTITION.format("cpux"), tasks=tasks).key == "tasks.ps.partition"


def test_closed_or_forbidden_partition_is_refused() -> None:
    error = refusal(CLOSED, SINFO.replace("short|up", "short|drain"), partition="short")
    assert (error.key, error.why) == ("partition", "partition short")
    assert error.problem == "Required partition not available (inactive or drain)"
    assert error.hint == "write partition = …; others: gpu (default), cpu"
    error = refusal("allocation failure: User's group not permitted to use this partition\n", partition="short")
    assert (error.key, error.why) == ("partition", "partition short")
    assert error.hint == "write partition = …; others: gpu (default), cpu"
    error = refusal("allocation failure: User's group not permitted to use this partition\n")
    assert error.hint == "write partition = …; others: cpu, short"  # not the default one, which is refused
    assert refusal(CLOSED, "").hint == refusal(CLOSED, NODES_DOWN, partition="gpu").hint == ""  # there are no others


def test_walltime_above_the_partition_limit_is_refused() -> None:
    error = refusal(STARTS, partition="short", time="2h")
    assert (error.key, error.problem) == ("time", "02:00:00 is more than partition short allows (00:30:00)")
    assert error.hint == 'write time = "00:30:00"; these partitions allow it: gpu (7-00:00:00), cpu (7-00:00:00)'
    assert "QOS" in error.why
    error = refusal(STARTS, time="30d")
    assert error.hint.startswith('write time = "7-00:00:00"; no partition allows it; there are: gpu (7-00:00:00)')
    tasks = {"ps": {"count": 1, "partition": "short"}}
    assert "partition short allows" in refusal(STARTS, time="1h", tasks=tasks).problem
    assert refusal(STARTS, environ={"SBATCH_TIMELIMIT": "8-0"}).key == "SBATCH_TIMELIMIT"
    (unread,) = requests({"SBATCH_TIME": "8-0", "SBATCH_MEM": "1T", "SBATCH_NODES": "99"}, time=60)
    assert (unread.time, unread.mem, unread.nodes) == (3600, 0, 1)


@pytest.mark.parametrize(
    "values",
    [
        {"partition": "short", "time": 30},
        {"partition": "cpu,short", "time": "2h"},  # the other partition allows it
        {"partition": "short", "time": "2h", "native": ["--qos=long"]},  # which may allow more
        {"native": ["--time=UNLIMITED"]},
    ],
)
def test_walltime_within_a_limit_is_accepted(values: dict[str, Any]) -> None:
    assert advice.judge(requests(**values), 0, STARTS, parse_partitions(SINFO)) == ()


def test_nodes_and_partitions_that_are_down_are_a_note() -> None:
    (note,) = advice.judge(requests(nodes=4), 1, SHAPE, parse_partitions(NODES_DOWN))
    assert note.endswith("cannot be used now: n[1-2] down (not responding), n3 drained")
    assert refusal(SHAPE, NODES_DOWN, nodes=5).problem == "5 nodes requested, partition gpu has 4"
    down = SINFO.replace("gpu*|up", "gpu*|down")
    assert advice.judge(requests(time=10), 0, STARTS, parse_partitions(down)) == (
        "the job waits until its partition is up: gpu (down)",
    )


@pytest.mark.parametrize(
    ("output", "values", "key"),
    [
        ("sbatch: error: Invalid generic resource (gres) specification", {"native": ["--gres=tpu:1"]}, "native"),
        ("allocation failure: Invalid feature specification", {"native": ["--constraint=x"]}, "native"),
        ("allocation failure: Requested reservation is invalid", {"native": ["--reservation=x"]}, "native"),
        ("allocation failure: Invalid license specification", {"native": ["-L x"]}, "native"),
        ("allocation failure: Invalid node name specified", {"native": ["-w x"]}, "native"),
        ("allocation failure: Invalid node name specified", {"exclude": ["x"]}, "exclude"),
        ("sbatch: error: Invalid --time specification", {"native": ["--time=abc"]}, "native"),
        ("sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more", {"native": ["--bogus"]}, "native"),
        # sites with accounting: from Slurm's sources of messages
        ("allocation failure: Invalid account or account/partition combination specified", {"account": "x"}, "account"),
        ("allocation failure: Invalid account or account/partition combination specified", {}, "account"),
        ("allocation failure: Invalid qos specification", {"native": ["--qos=x"]}, "native"),
    ],
)
def test_other_refusals_have_slurm_s_message(output: str, values: dict[str, Any], key: str) -> None:
    error = refusal(output, **values)
    assert error.key == key
    message, _, name = error.problem.partition(": ")
    assert message in output
    assert name in str(values)
    assert error.hint


def test_refusal_without_a_known_key_lists_the_partitions() -> None:
    # from Slurm's documentation
    output = "allocation failure: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    with pytest.raises(SchedulerError, match="refuse this job: Job violates accounting/QOS policy") as caught:
        advice.judge(requests(), 1, output, parse_partitions(SINFO))
    assert "cpu: 1 node, up to 7-00:00:00; short: 4 nodes, 4 GPUs per node, up to 00:30:00" in caught.value.hint


def test_parse_partitions() -> None:
    big, old, empty = parse_partitions(MIXED)
    assert (big.name, big.default, big.limit, big.most_nodes, big.size) == ("big", True, None, None, 5)
    assert (old.up, old.limit, empty.size, empty.nodes) == ("drain", 3600, 0, ())
    assert [nodes.gpus() for nodes in big.nodes + old.nodes] == [8, 4, 4]
    assert old.nodes[0].gpus("k80") == 2
    assert big.nodes[0].mem == 512000
    assert all(nodes.works for nodes in big.nodes)
    assert show_gpus(big) == "8 a100 each or 4 v100 each"
    assert unusable_nodes([big, old]) == ""


def test_partition_whose_nodes_have_no_gpu_left_has_none() -> None:
    (partition,) = parse_partitions("a|up|infinite|1-infinite|1|idle|8|16000|gpu:a100:0|n1\n")
    assert show_gpus(partition) == ""


def test_parse_partitions_with_abbreviated_numbers() -> None:
    (big,) = parse_partitions("Welcome\nfat*|up|infinite|1-1.50K|1.50K|idle|1.50K|512000|(null)|f[1-1536]\n")
    assert (big.size, big.most_nodes) == (1536, 1536)
    assert (big.nodes[0].cpus, big.nodes[0].mem) == (1536, 512000)


@pytest.mark.parametrize(
    ("option", "gpu_type", "gpus"),
    [("gpu:4", "", 4), ("gpu:a100:4", "a100", 4), ("gpu:2080ti:2", "2080ti", 2), ("gpu:1g.10gb:1", "1g.10gb", 1)],
)
def test_gpu_types_in_the_environment_of_sbatch(option: str, gpu_type: str, gpus: int) -> None:
    for name, value in (("GRES", option), ("GPUS_PER_NODE", option.removeprefix("gpu:"))):
        (request,) = requests({f"SBATCH_{name}": value})
        assert (request.gpu_type, request.gpus) == (gpu_type, gpus)


def test_reservation_that_begins_later_is_a_note() -> None:
    output = "allocation failure: Invalid time specified\n"
    for request in (requests(native=["--reservation=x"]), requests({"SBATCH_RESERVATION": "x"})):
        notes = advice.judge(request, 1, output, parse_partitions(SINFO))
        assert notes == ("the job waits until its reservation begins",)
    with pytest.raises(SchedulerError, match="Invalid time specified"):
        advice.judge(requests(), 1, output, parse_partitions(SINFO))


def test_banner_of_a_site_is_not_part_of_slurm_s_message() -> None:
    banner = "Welcome to the cluster\n--> Checking allocation...OK\n"
    error = refusal(f"{banner}allocation failure: Invalid qos specification\n{banner}", native=["--qos=x"])
    assert error.problem == "Invalid qos specification: x"


def test_request_beyond_a_partition_of_several_node_types() -> None:
    error = refusal(SHAPE, MIXED, nodes=3, gpus_per_node=8)
    assert "3 nodes with 8 GPUs" in error.problem
    assert "partition big has 2 such" in error.problem
    assert error.key == "nodes"
    error = refusal(SHAPE, MIXED, gpus_per_node="h100:1")
    assert "no node of partition big has h100 GPUs" in error.problem


def test_component_requests() -> None:
    tasks = {"worker": {"count": 4}, "ps": {"count": 2, "partition": "cpu", "cpus": 3, "mem": "1G"}}
    values: dict[str, Any] = {"nodes": 2, "gpus_per_node": 2, "time": "1h", "cpus_per_task": 4, "mem_per_task": "2G"}
    first, second = requests(tasks=tasks, **values)
    assert (first.partitions, first.nodes, first.gpus, first.cpus, first.time) == ((), 2, 2, 8, 3600)
    assert first.mem == 4096
    assert (second.partitions, second.nodes, second.gpus, second.cpus, second.time) == (("cpu",), 1, 0, 3, 3600)
    assert second.mem == 1026  # sbatch has it per CPU, rounded up
    # sbatch multiplies --mem-per-cpu by the CPUs, whichever option requests them
    own = {**values, "gpus_per_node": None, "nodes": 2, "tasks": tasks}
    more, _ = requests({"SBATCH_MEM_PER_CPU": "512"}, **own)
    assert (more.cpus, more.mem) == (8, 4096)
    (native,) = requests(nodes="2-3", native=["-p", "--partition=a,b", "-t2:00:00", "-N 3", "--mem=max"])
    assert (native.partitions, native.time, native.nodes, native.mem) == (("a", "b"), 7200, 3, 0)


@pytest.mark.parametrize(
    ("variable", "native", "note"),
    [
        ("SBATCH_TIMELIMIT=5", [], "SBATCH_TIMELIMIT=5 in the environment takes precedence over --time=00:10:00"),
        (
            "SBATCH_GPUS_PER_NODE=1",
            [],
            "SBATCH_GPUS_PER_NODE=1 in the environment takes precedence over --gpus-per-node=2",
        ),
        ("SBATCH_QOS=long", ["-q short"], "SBATCH_QOS=long in the environment takes precedence over --qos=short"),
        ("SBATCH_QOS=long", [], ""),  # a default of the user's own
        ("SBATCH_GPUS_PER_NODE=2", [], ""),
        ("SBATCH_TIMELIMIT=", [], ""),
        ("SBATCH_TIME=5", [], ""),  # which sbatch does not read, nor the next ones
        ("SBATCH_NODES=5", [], ""),
        ("SBATCH_ARRAY=0-3", [], ""),
        ("SBATCH_ARRAY_INX=0-3", ["--array=0-3"], ""),
        (
            "SBATCH_GRES=gpu:1",
            [],
            "SBATCH_GRES=gpu:1 in the environment adds --gres=gpu:1 to the job; if not meant, unset it",
        ),
        ("SBATCH_GRES=lustre", [], ""),
        (
            "SBATCH_EXCLUSIVE=user",
            [],
            "SBATCH_EXCLUSIVE=user in the environment adds --exclusive=user to the job; if not meant, unset it",
        ),
        ("SBATCH_EXPORT=ALL,X=1", [], ""),
        (
            "SBATCH_EXPORT=NONE",
            [],
            "SBATCH_EXPORT=NONE keeps this shell's PATH and other variables from the job: unset it, or set what the "
            "program needs with setup and env",
        ),
    ],
)
def test_options_that_the_environment_overrides_are_told(variable: str, native: list[str], note: str) -> None:
    name, _, text = variable.partition("=")
    job = plan("slurm", name="x", time=10, gpus_per_node=2, native=native)
    assert advice.overridden(job, {"PATH": "/bin", name: text}) == [note] * bool(note)


def test_array_by_the_environment_alone_is_refused() -> None:
    with pytest.raises(SpecError, match="share one run directory") as caught:
        advice.overridden(plan("slurm", name="x"), {"SBATCH_ARRAY_INX": "0-3"})
    assert caught.value.key == "SBATCH_ARRAY_INX"


# --- check, with stand-ins for Slurm's commands ------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in advice.variables_of(os.environ).values():
        monkeypatch.delenv(name)
    command(tmp_path, "sinfo", f"cat <<'END'\n{SINFO}END")
    command(tmp_path, "scontrol", 'echo "Slurmctld(primary) at ctl is DOWN"')
    command(tmp_path, "sacctmgr", "echo 'Dear user,'; echo physics; echo chemistry,physics")
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/bash\necho {name} "$@" >> "{folder}/calls"\n{script}\n')
    path.chmod(0o755)


def sbatch_prints(tools: Path, output: str, code: int = 1) -> None:
    command(tools, "sbatch", f"cat >&2 <<'END'\n{output}\nEND\nexit {code}")


def called(tools: Path) -> list[str]:
    return [line.split()[0] for line in (tools / "calls").read_text().splitlines()]


def test_check_runs_sinfo_only_for_a_walltime(tools: Path) -> None:
    sbatch_prints(tools, STARTS, 0)
    assert advice.check(plan("slurm", run_dir="/runs/x")) == ()
    assert (tools / "calls").read_text() == "sbatch --test-only\n"
    assert advice.check(plan("slurm", time=10)) == ()
    assert called(tools) == ["sbatch", "sbatch", "sinfo"]


def test_check_asks_the_cluster_that_an_option_names(tools: Path) -> None:
    sbatch_prints(tools, STARTS, 0)
    assert advice.check(plan("slurm", time=10, native=["-M east"])) == ()
    assert (tools / "calls").read_text().endswith(" --clusters=east\n")


@pytest.mark.thorough
def test_check_without_sinfo(tools: Path) -> None:
    command(tools, "sinfo", "exit 1")
    sbatch_prints(tools, STARTS, 0)
    assert advice.check(plan("slurm", time="99d")) == ()
    sbatch_prints(tools, SHAPE)
    with pytest.raises(SchedulerError, match="refuse this job: Requested node configuration is not available"):
        advice.check(plan("slurm", nodes=9))
    sbatch_prints(tools, NO_PARTITION.format("gpux"))
    with pytest.raises(SchedulerError, match="refuse this job: invalid partition specified: gpux"):
        advice.check(plan("slurm", partition="gpux"))


def test_refused_account_lists_the_user_s_accounts(tools: Path) -> None:
    sbatch_prints(tools, "allocation failure: Invalid account or account/partition combination specified")
    with pytest.raises(SpecError) as caught:
        advice.check(plan("slurm", account="physisc"))
    assert (caught.value.key, caught.value.hint) == ("account", "available to you: chemistry, physics")


@pytest.mark.parametrize(
    ("name", "value", "output", "word"),
    [
        ("SBATCH_NO_KILL", "1", "Invalid --no-kill specification", "--native=--no-kill"),
        ("SBATCH_GPUS", "2", "Invalid generic resource (gres) specification", "--gpus"),
        ("SBATCH_GRES", "gpu:9", "Requested node configuration is not available", "--gpus-per-node"),
    ],
)
def test_variable_without_which_slurm_accepts_the_job_is_named(
    tools: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, output: str, word: str
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "chemistry")
    monkeypatch.setenv(name, value)
    command(tools, "sbatch", f'[ -z "${name}" ] && exit\necho "sbatch: error: {output}" >&2\nexit 1')
    with pytest.raises(SpecError) as caught:
        advice.check(plan("slurm", gpus_per_node=1))
    assert caught.value.key == name
    assert caught.value.problem == f"Slurm refuses {value!r} in the environment: {output}"
    assert caught.value.hint == f"unset {name}; what a job needs is written as {word}"
    monkeypatch.setenv("SBATCH_ACCOUNT", "physics")
    command(tools, "sbatch", f'echo "sbatch: error: {output}" >&2\nexit 1')  # whatever is set
    with pytest.raises((SpecError, SchedulerError)) as other:
        advice.check(plan("slurm", gpus_per_node=1))
    assert name not in str(other.value)


def test_check_without_a_controller(tools: Path) -> None:
    sbatch_prints(tools, "allocation failure: Unable to contact slurm controller (connect failure)")
    with pytest.raises(SchedulerError, match="Slurm's controller on ctl does not answer"):
        advice.check(plan("slurm"))
    assert called(tools) == ["sbatch", "scontrol"]


def test_check_without_sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SchedulerError, match="sbatch not found on"):
        advice.check(plan("slurm"))


@pytest.mark.parametrize("text", ["MaxArraySize            = 5", "", "slurm_load_ctl_conf error"])
def test_slurm_s_limit_on_arrays_is_known(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = f"Configuration data as of 2026\nMaxJobCount             = 4\n{text}\n"
    monkeypatch.setattr(slurm, "run", lambda argv, **_: Answer(0, shown, ""))
    advice.check_array(of_sweep(plan("slurm"), 4, 4).request)
    if "5" in text:
        with pytest.raises(SpecError, match="it has 5 elements, at most 4 are allowed") as caught:
            advice.check_array(of_sweep(plan("slurm"), 5, 4).request)
        assert caught.value.why == "MaxArraySize of this Slurm is 5"
    else:
        advice.check_array(of_sweep(plan("slurm"), 5000, 4).request)


# --- when a job would start


ON_CPU = "allocation failure: Access denied to requested reservation\n"


@pytest.mark.parametrize(
    ("output", "start"),
    [
        (STARTS, "2026-11-21T11:21:34"),
        ("sbatch: Job 12 to start at 2026-11-28T16:02:00 using 4 processors on n[1-2]\n", "2026-11-28T16:02:00"),
        ("sbatch: Job 59 to start at 1795882817 using 2 processors on c1,n1\n", 1795882817.0),
        ("sbatch: Welcome!\nsbatch: Job 4 to start at 1795882817 using 2 processors on nodes n1\n", 1795882817.0),
        ("sbatch: Job 4 to start at 1795882817 using …\nsbatch: Job 5 to start at 1795882999 using …\n", 1795882999.0),
        ("sbatch: Job 4 to start at Unknown using 1 processors\n", None),
        ("", None),
    ],
)
def test_estimate_is_found_in_what_several_versions_print(output: str, start: str | float | None) -> None:
    found = advice.parse_estimate(output)
    assert found.start == (parse_moment(start) if isinstance(start, str) else start)
    assert found.why == ("" if start else "Slurm gives no estimate")


@pytest.mark.parametrize(
    ("sinfo", "values", "why", "never"),
    [
        (SINFO, {"partition": "short", "time": "1h"}, "01:00:00 is more than partition short allows", True),
        (SINFO, {"partition": "cpu", "gpus_per_node": 1}, "no node of partition cpu has GPUs", True),
        (SINFO, {"nodes": 5}, "5 nodes requested, partition gpu has 4", True),
        (SINFO, {"nodes": 2, "exclude": ["n1", "n[2-3]"]}, "2 nodes with 1 CPUs requested, partition gpu has 1", True),
        (SINFO, {"nodes": 2, "exclude": ["n[1-2]", "c1"]}, None, False),
        (SINFO.replace("short|up", "short|down"), {"partition": "short"}, "the job waits until its partition", False),
        (NODES_DOWN, {}, None, False),
        (SINFO, {"partition": "cpu"}, None, False),
        ("", {"partition": "cpu"}, None, False),
    ],
)
def test_no_question_where_the_partitions_tell(sinfo: str, values: Any, why: str | None, never: bool) -> None:
    found = advice.foreseen(plan("slurm", name="x", **values), parse_partitions(sinfo))
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert found.why.startswith(why)
        assert (found.start, found.never) == (None, never)


@pytest.mark.parametrize(
    ("answer", "why", "never"),
    [
        (Answer(1, "", ON_CPU), "refused: Access denied to requested reservation", True),
        (Answer(1, "", "sbatch: error: the site is closed\n"), "refused: the site is closed", False),
        (Answer(1, "", NO_PARTITION.format("x")), "refused: ", True),
        (Answer(0, "", "sbatch: Have a nice day\n"), "Slurm gives no estimate", False),
    ],
)
def test_a_refusal_is_an_answer(answer: Answer, why: str, never: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "run", lambda argv, limit, text: answer)
    values = {"partition": "x"} if "x" in answer.err.split("specified: ")[-1][:1] else {}
    found = advice.estimate(plan("slurm", name="x", **values), parse_partitions(SINFO), ["gpu"], "")
    assert found.why.startswith(why)
    assert (found.start, found.never) == (None, never)


@pytest.mark.parametrize("reservations", ["ReservationName=maint StartTime=…", "No reservations in the system\n"])
def test_nodes_that_are_reserved_are_waited_for(reservations: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch --test-only refuses a job that would run into a reservation, and sbatch queues it."""
    monkeypatch.setattr(slurm, "run", lambda argv, limit, text="": Answer(1, "", SHAPE))
    monkeypatch.setattr(slurm, "try_run", lambda argv, limit: reservations)
    monkeypatch.setattr("gridtf.schedulers.slurm.offers.query_partitions", lambda **_: parse_partitions(SINFO))
    made = plan("slurm", name="x", time="1h")
    if reservations.startswith("No"):
        with pytest.raises(SchedulerError, match="would refuse"):
            advice.check(made)
        return
    told = "the job waits for nodes that are reserved: `scontrol show reservation` lists them"
    assert advice.check(made) == (told,)
    assert advice.estimate(made, parse_partitions(SINFO), ["gpu"], "").why == told


def test_variable_that_overrides_what_is_chosen_leaves_that_choice_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    monkeypatch.setenv("SBATCH_ACCOUNT", "ml")

    def foreseen(partition: str) -> str:
        found = advice.foreseen(plan("slurm", name="x", partition=partition, account="x"), parse_partitions(SINFO))
        return found.why if found and found.never else ""

    assert foreseen("gpu") == "SBATCH_PARTITION=short in the environment takes precedence over --partition=gpu"
    assert foreseen("short") == ""
