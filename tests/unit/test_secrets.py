"""What a report masks, and what it shows."""

from __future__ import annotations

import json
import shlex

import pytest

from gridtf.secrets import MASK, Masker, given, secret


@pytest.mark.parametrize(
    "name",
    [
        *("API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "github-token", "DB_PASSWORD", "dbPasswd"),
        *("CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS", "AUTHORIZATION", "BASIC_AUTH", "client.secret"),
        *("DB_PASS", "db-pass", "MYSQL_PWD"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert secret(name, "s3cr3t-value")
    assert Masker().value(name, "s3cr3t-value") == MASK


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "AUTHOR", "AUTHOR_NAME", "KEYBOARD", "PATH", "OUTPUT_DIR", "OLDPWD", "use_passive"],
)
def test_other_names(name: str) -> None:
    assert Masker().value(name, "a-long-value") == "a-long-value"


def test_numbers_and_references_are_shown() -> None:
    assert Masker().value("max_tokens", 512) == 512
    assert Masker().text("--key-dim 64 MAX_TOKENS=1024 API_KEY=$OTHER") == "--key-dim 64 MAX_TOKENS=1024 API_KEY=$OTHER"
    assert Masker().value("PASSWORD", "1234") == MASK


@pytest.mark.parametrize(
    "text",
    [
        "export API_KEY=hunter22secret",
        "export API_KEY='hunter22secret'",
        'API_KEY = "hunter22secret"',
        "export API_KEY='with '\\''quotes'\\'' hunter22secret'",
        'export GRIDTF_SPEC=\'{"env": {"WANDB_API_KEY": "hunter22secret"}}\'',
        "python train.py --token hunter22secret",
        "python train.py --auth-token=hunter22secret --steps 5",
        '["train",\n "--token",\n "hunter22secret"]',
        "git clone https://ann:hunter22secret@example.org/x.git",
        "curl -H 'Authorization: Bearer hunter22secret'",
        "Authorization: Token hunter22secret",
        '{"Authorization": "ApiKey hunter22secret"}',
        "export DB_PASS=hunter22secret",
        "password: hunter22secret",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter22secret\n-----END RSA PRIVATE KEY-----",
        "X_KEY=hunter22secret; echo done",
        "using hf_hunter22secretABCDEFGHIJ",
    ],
)
def test_secrets_in_texts_are_masked(text: str) -> None:
    shown = Masker().text(text)
    assert "hunter22secret" not in shown
    assert MASK in shown


def test_keys_of_services_are_masked_by_their_form() -> None:
    assert Masker().text("id AKIAIOSFODNN7EXAMPLE end") == f"id {MASK} end"
    assert "eyJhbGci" not in Masker().text("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_d")


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'accuracy'",
        "KeyboardInterrupt",
        "https://example.org:8080/path@v1",
        "python train.py --tokenizer bert-base --steps 500",
        "step 3 loss 0.25",
        "if key == other:",
        "first_pass=3 bypass: on forward_pass: 12ms",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert Masker().text(text) == text


def test_values_of_the_environment_are_masked_wherever_they_are() -> None:
    value = 'it\'s "quoted" äx9'
    masker = Masker([{"MY_TOKEN": value, "MODE": "fast"}])
    for form in (value, json.dumps(value), f"echo {value} fast"):
        shown = masker.text(form)
        assert MASK in shown
        assert "quoted" not in shown
    assert "quoted" not in masker.text(shlex.quote(value).replace("'\"'\"'", "'\\''"))
    assert masker.text("fast") == "fast"
    assert Masker([{"SORT_KEY": "worker", "API_KEY": "k"}]).text("worker:0 took") == "worker:0 took"


def test_the_word_after_an_option_is_masked() -> None:
    assert Masker().words(["train", "--api-key", "abc-def", "--steps", "5"]) == [
        "train",
        "--api-key",
        MASK,
        "--steps",
        "5",
    ]
    assert Masker().words(["train", "--use-token", "--steps"]) == ["train", "--use-token", "--steps"]


def test_tables_and_lists_are_masked_inside() -> None:
    shown = Masker().value("env", {"A_KEY": "secret-1", "B": ["x", "--token", "secret-2"], "C": 3})
    assert shown == {"A_KEY": MASK, "B": ["x", "--token", MASK], "C": 3}


def test_long_lines_take_no_time() -> None:
    line = "a" * 300_000 + " KEY" + "_" * 300_000
    assert Masker().text(line) == line
    for word in ("key", "--key"):  # as in a long word of base64
        assert Masker().text(word * 100_000) == word * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "export API_KEY=hunter22secret",
        "module load x; DB_PASSWORD='hunter22secret' ./login",
        "python train.py --auth-token hunter22secret",
        '{"command": ["train", "--auth-token", "hunter22secret", "--steps", "5"], "name": "x"}',
        '{"env": {"WANDB_API_KEY": "hunter22secret"}}',
        '{"command": ["train", "--api_key=hunter22secret"], "tasks": {"worker": {"count": 2}}}',
    ],
)
def test_secret_that_a_text_gives_by_name_is_masked_where_it_stands_alone(text: str) -> None:
    assert Masker(given(text)).text("logged in as hunter22secret") == f"logged in as {MASK}"


def test_lists_of_tables_and_numbers_stay_what_they_are() -> None:
    value = {"tasks": [{"type": "worker", "api_key": "s3cr3t-value"}], "then": [1, 2], "words": ["--token", "abcdefg1"]}
    shown = {"tasks": [{"type": "worker", "api_key": MASK}], "then": [1, 2], "words": ["--token", MASK]}
    assert Masker().value("", value) == shown
