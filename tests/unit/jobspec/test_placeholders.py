"""Placeholders: misspelt ones, braces of other programs, and names that lost their braces."""

from __future__ import annotations

import pytest

from gridtf.errors import SpecError
from gridtf.jobspec.placeholders import misspelt, without_braces
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
        ("{taskindex}{workerhosts}", [("taskindex", "task_index"), ("workerhosts", "worker_hosts")]),
    ],
)
def test_misspelt_placeholder_is_an_error_with_a_suggestion(text: str, meant: list[tuple[str, str]]) -> None:
    assert list(misspelt(text)) == meant
    with pytest.raises(SpecError) as caught:
        job(command=["train", text])
    assert str(caught.value).startswith(f"command: there is no placeholder {{{meant[0][0]}}}")
    assert f"did you mean {{{meant[0][1]}}}?" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "awk '{print}'",
        "{step}",
        "{host}",
        'f"{run_id} {loss}"',
        "${task_id}",
        "{index} {type}",
        "--form={epoch}",
        "{ task_id }",
        "{}",
        '{"rank": {x}}',
    ],
)
def test_other_braces_in_commands_are_accepted(text: str) -> None:
    assert job(command=["bash", "-c", text]).command[-1] == text


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
