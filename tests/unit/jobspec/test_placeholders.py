"""Placeholders: misspelt ones, braces of other programs, and names that lost their braces."""

from __future__ import annotations

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec.placeholders import NAMES, fill, is_whole, misspelt, without_braces
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
