"""Placeholders: misspelt ones, braces of other programs, and names that lost their braces."""

from __future__ import annotations

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec.checks import need_parameters
from gridtf.jobspec.placeholders import NAMES, fill, filled, is_whole, misspelt, parameters, without_braces
from tests.support.plans import job


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("--index={task_id}", [("task_id", "task_index")]),
        ("{worker_host}", [("worker_host", "worker_hosts")]),
        ("{out_dir}/{task_type}", [("out_dir", "output_dir")]),
        ("{master_adr}", [("master_adr", "master_addr")]),
        ("--task={job_name}", [("job_name", "task_type")]),
        ("{index}", [("index", "task_index")]),
        ("--rank={rnk}", [("rnk", "rank")]),
        ("--workers={workers}", [("workers", "worker_hosts")]),
        ("--hosts={hosts}", [("hosts", "ps_hosts")]),
        ("{taskindex}{workerhosts}", [("taskindex", "task_index"), ("workerhosts", "worker_hosts")]),
    ],
)
def test_misspelt_placeholder_is_an_error_with_a_suggestion(text: str, meant: list[tuple[str, str]]) -> None:
    assert list(misspelt(text, NAMES, whole=is_whole(text))) == meant
    with pytest.raises(SpecError) as caught:
        job(command=["train", text])
    assert str(caught.value).startswith(f"command: there is no placeholder {{{meant[0][0]}}}")
    assert f"did you mean {{{meant[0][1]}}}?" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "awk '{print}'",
        "{print}",
        "at {step}",
        "{{step}}",
        'f"{run_id} {loss}"',
        "${task_id}",
        "{index} {type}",
        "--form={epoch}.h5",
        "{ task_id }",
        "{}",
        '{"rank": {x}}',
    ],
)
def test_other_braces_in_commands_are_accepted(text: str) -> None:
    assert job(command=["bash", "-c", text]).command[-1] == text


@pytest.mark.parametrize("text", ["{step}", "--form={epoch}"])
def test_a_word_in_braces_that_is_no_placeholder_is_refused_unless_it_is_doubled(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        job(command=["train", text])
    name = text.partition("{")[2].strip("}")
    assert caught.value.problem == f"there is no placeholder {{{name}}}"
    assert caught.value.hint.endswith(f"to pass braces to the program itself, write {{{{{name}}}}}")
    doubled = text.replace("{", "{{").replace("}", "}}")
    assert fill(job(command=["train", doubled]).command[1], {}) == text


def test_misspelt_placeholder_in_a_variable_is_refused_and_other_words_are_kept() -> None:
    with pytest.raises(SpecError) as caught:
        job(env={"INDEX": "{task_id}"})
    assert (caught.value.key, caught.value.hint.split("?")[0]) == ("env.INDEX", "did you mean {task_index}")
    assert job(env={"LOG_FORMAT": "{message}"}).env == {"LOG_FORMAT": "{message}"}


def test_hosts_of_a_type_of_the_job_s_own_are_a_placeholder() -> None:
    tasks = {"board": {"kind": "service"}}
    assert job(command=["train", "{board_hosts}"], tasks=tasks).command[1] == "{board_hosts}"
    with pytest.raises(SpecError) as caught:
        job(command=["train", "{bord_hosts}"], tasks=tasks)
    assert "did you mean {board_hosts}?" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train", "--ps_hosts", "ps_hosts"], [("--ps_hosts ps_hosts", "ps_hosts")]),
        (["train", "--index=task_index", "x"], [("--index=task_index", "task_index")]),
        (["train", "-r", "rank", "--rank", "rank"], [("--rank rank", "rank")]),
        (["train", "--metric", "rank", "--job_name=cluster"], []),
        (["train", "--ps_hosts", "{ps_hosts}", "--index={task_index}", "task_type"], []),
        (["train", "--task_index"], []),
    ],
)
def test_names_of_placeholders_without_braces_are_found(words: list[str], found: list[tuple[str, str]]) -> None:
    assert list(without_braces(words)) == found


# --- parameters

PARAMS = {"lr": 1e-3, "num-layers": 4, "tag": "a {rank} 'b' é", "cache": True, "augment": False, "shift": "-1"}


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("{params.lr}", ["0.001"]),
        ("--tag={params.tag}", ["--tag=a {rank} 'b' é"]),
        ("{params.shift}", ["-1"]),
        ("{params.cache}/{params.augment}", ["true/false"]),
        ("lr-{params.lr}-{rank}", ["lr-0.001-3"]),
        ("{{ num-layers }}", ["4"]),
        ("--layers={{num_layers}}", ["--layers=4"]),
        ("bash {{lr}} {{rank}}", ["bash 0.001 {3}"]),
        ("{params}", ["--lr=0.001", "--num-layers=4", "--tag=a {rank} 'b' é", "--cache", "--shift=-1"]),
        ("{{params}}", ["{params}"]),
        ("{{rank}}", ["{rank}"]),
        ("${params.lr}", ["${params.lr}"]),
        ("$x${params}", ["$x${params}"]),
    ],
)
def test_parameters_are_filled_in_once(word: str, made: list[str]) -> None:
    spec = job(command=["train", word], params=PARAMS)
    need_parameters(spec)
    assert filled(spec.command[1:], {"rank": "3", **parameters(PARAMS)}, PARAMS) == made


@pytest.mark.parametrize(
    ("word", "params", "problem", "hint"),
    [
        (
            "{params.lrr}",
            PARAMS,
            "there is no parameter 'lrr'",
            "did you mean lr? if not, write lrr = … under [params]",
        ),
        ("{params.lr}", {}, "there is no parameter 'lr'", "write lr = … under [params] in the job file, or --set lr=…"),
        ("--layers={{ num-layers }}", {}, "there is no parameter 'num-layers'", "write num-layers = … under [params]"),
        ("sh run {{ num-layers }}", {}, "there is no parameter 'num-layers'", "write num-layers = … under [params]"),
        (
            "sh run {{ num-laers }}",
            PARAMS,
            "there is no parameter 'num-laers'",
            "did you mean num-layers? if not, write",
        ),
        ("{{num-layer}}", {}, "there is no parameter 'num-layer'", "write num-layer = … under [params]"),
        ("run {params}", PARAMS, "{params} stands for several arguments, and is only a part of", "make it an argument"),
        ("--all={params}", PARAMS, "{params} stands for several arguments, and is only a part", "make it an argument"),
        (
            "{params}",
            {},
            "{params} stands for the parameters of the job, and it has none",
            "set some: --set lr=0.01, or lr = 0.01 under [params]",
        ),
        ("--lr={lr}", PARAMS, "there is no placeholder {lr}", "the parameter is {params.lr}"),
    ],
)
def test_parameters_that_are_not_there_are_refused(
    word: str, params: dict[str, object], problem: str, hint: str
) -> None:
    with pytest.raises(SpecError) as caught:
        need_parameters(job(command=["train", word], params=params))
    found = caught.value
    assert (found.key, found.problem[: len(problem)], found.hint[: len(hint)]) == ("command", problem, hint)


@pytest.mark.parametrize("text", ["{params.lr} {{ x }}", "f'{{ x }} {params}'", "{{ print }}", "{{x.y-z}}"])
def test_braces_of_programs_are_kept_in_a_job_without_parameters(text: str) -> None:
    spec = job(command=["bash", "-c", text])
    need_parameters(spec)
    assert fill(spec.command[-1], {}) == text


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"env": {"LR": "{params.rate}"}}, "env.LR"),
        ({"env": {"ALL": "{params}"}}, "env.ALL"),
        ({"command": ["{params}"]}, "command"),
        ({"tasks": {"ps": {"command": ["serve", "{{ lrr }}"]}}}, "tasks.ps.command"),
        ({"tasks": {"ps": {"env": {"A": "x {params.z}"}}}}, "tasks.ps.env.A"),
    ],
)
def test_parameters_of_variables_and_task_types(values: dict[str, object], key: str) -> None:
    spec = job(**values, params=PARAMS)  # a sweep may have them
    with pytest.raises(SpecError) as caught:
        need_parameters(spec)
    assert caught.value.key == key
    need_parameters(job(env={"LR": "{params.rate}", "LOG": "{message} {params}"}))
