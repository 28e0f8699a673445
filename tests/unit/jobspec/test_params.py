"""Parameters: their types, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridtf.errors import SpecError, UsageError
from gridtf.jobspec.config import Configured, Use, from_arguments
from gridtf.jobspec.params import parameter
from gridtf.jobspec.spec import JobSpec
from gridtf.login import submission

_KNOWN = {"lr": 0.01, "layers": 4, "tag": "x", "dropout": True}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("lr", "1", 1.0), ("lr", "1e-3", 0.001), ("layers", "5", 5), ("tag", "5", "5"), ("tag", "TRUE", "TRUE")),
        *(("dropout", "false", False), ("dropout", "TRUE", True), ("dropout", "False", False)),
    ],
)
def test_parameter_has_the_type_that_it_has_in_the_file(name: str, text: str, value: object) -> None:
    made = parameter(name, text, _KNOWN)
    assert (made, type(made)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("layers", "5.5", "it is 4 so far"),
        ("layers", "five", "it is 4 so far"),
        ("dropout", "1", "it is true so far"),
        ("layer", "5", "did you mean layers?"),
    ],
)
def test_other_values_and_names_are_refused(name: str, text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parameter(name, text, _KNOWN)
    assert caught.value.hint == hint


def _configured(folder: Path, *words: str, **environ: str) -> Configured:
    return from_arguments(words, {"GRIDTF_SITE_CONFIG": "", "HOME": str(folder), **environ}, folder)


def test_set_overrides_the_variable_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["a"]\n[params]\nlr = 0.1\nlayers = 2\nwidth = 8\n')
    made = _configured(tmp_path, "job.toml", "--set", "lr=0.5", GRIDTF_SUBMIT_SET="lr=0.3\nlayers=3")
    assert made.spec.params == {"lr": 0.5, "layers": 3, "width": 8}
    assert [made.source(f"params.{name}") for name in made.spec.params] == ["--set", "GRIDTF_SUBMIT_SET", "job.toml:5"]


def test_set_without_params_in_the_file_makes_them(tmp_path: Path) -> None:
    made = _configured(tmp_path, "--set", "lr=0.5", "--set", "name=a b", "--", "a")
    assert made.spec.params == {"lr": 0.5, "name": "a b"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--set", "layer=3"], "--set: there is no parameter 'layer'"),
        (["--set", "lr"], "--set: 'lr' is not a parameter"),
        (["--set", "layers=x"], "--set: 'x' is not a whole number"),
    ],
)
def test_wrong_set_names_the_option(words: list[str], what: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('command = ["a"]\n[params]\nlr = 0.1\nlayers = 2\n')
    with pytest.raises(UsageError) as caught:
        _configured(tmp_path, "job.toml", *words)
    assert caught.value.what == what


@pytest.mark.parametrize(("table", "command"), [("sweep]\nlr = [1, 2]", "sweep"), ("steps.train]", "submit")])
def test_file_of_several_jobs_is_not_run_here(table: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(f'command = ["a"]\n[params]\nlr = 1\n[{table}\n')
    with pytest.raises(UsageError) as caught:
        from_arguments(["job.toml"], {"GRIDTF_SITE_CONFIG": "", "HOME": str(tmp_path)}, tmp_path, use=Use.HERE)
    assert caught.value.hint == f"gridtf {command} job.toml submits a job for each"


@pytest.mark.parametrize("params", [{"a b": 1}, {"a": [1]}, {"a": float("inf")}, {"a": "x\ny"}, [1]])
def test_spec_refuses_what_is_no_parameter(params: object) -> None:
    with pytest.raises(SpecError):
        JobSpec(command=["a"], params=params)  # type: ignore[arg-type]


def test_parameters_longer_than_a_variable_are_refused() -> None:
    assert JobSpec(command=["a"], params={"text": "x" * 130_000}).params
    with pytest.raises(SpecError, match="Linux allows 131071 in a variable, GRIDTF_PARAMS"):
        JobSpec(command=["a"], params={"text": "é" * 30_000})


def test_unknown_parameter_of_a_command_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('name = "x"\ncommand = ["a", "{params.layer}"]\n[params]\nlayers = 2\n')
    made = _configured(tmp_path, "job.toml")
    with pytest.raises(UsageError) as caught:
        submission.prepare(made.spec.replace(scheduler="local"), made.sources)
    assert caught.value.what == "job.toml:2: command: there is no parameter 'layer'"
    assert caught.value.hint.startswith("did you mean layers? if not, write layer = …")
