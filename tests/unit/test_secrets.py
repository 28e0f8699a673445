"""What a report masks, and what it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex

import pytest

from gridtf.secrets import MASK, Masker, given, secret
from tests.support.topics import fast

_VALUE = "hunter22secret"
_LONG = "7Hunter22SecretXyZ0123456789abcdefAB7890"  # where a service has keys of many characters
_HEX = hashlib.sha1(b"invented", usedforsecurity=False).hexdigest()


def _body(width: int = 64) -> str:
    """Lines as a private key has them, the last one shorter: invented."""
    text = base64.b64encode(b"".join(hashlib.sha512(bytes([number])).digest() for number in range(5))).decode()
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


# kind, a text of it, and the secret that stands there in place of §: no text here is what a scanner takes for a key
_KINDS = [
    # names, in scripts and in files of settings
    ("variable PASS", "PASS=§ ./login", _VALUE),
    ("variable SSHPASS", "export SSHPASS=§", _VALUE),
    ("variable PGPASS", "export PGPASS='§'", _VALUE),
    ("variable PGPASSWORD", "PGPASSWORD=§ psql -h db", _VALUE),
    ("variable passcode", "PASSCODE=§", _VALUE),
    ("variable of csh", "setenv WANDB_API_KEY §", _VALUE),
    ("variable of fish or Docker", "ENV HF_TOKEN §", _VALUE),
    ("two words in quotes", "export DB_PASSWORD='one §'", _VALUE),
    ("option with an equals sign", "train --password=§", _VALUE),
    ("option --pwd", "isql --pwd § -q", _VALUE),
    ("option --pass", "smb --user ann --pass §", _VALUE),
    ("option --passphrase", "gpg --batch --passphrase § -d x", _VALUE),
    ("option --token", "huggingface-cli login --token §", _VALUE),
    ("option of a notebook", "jupyter lab --IdentityProvider.token='§'", _VALUE),
    ("ODBC", "Driver=x;Server=db;Uid=ann;Pwd=§;Port=1", _VALUE),
    ("INI", "[db]\npassword = §\n", _VALUE),
    ("rclone", "[sftp]\nuser = ann\npass = §\n", _VALUE),
    ("TOML", 'api_key = "§"', _VALUE),
    ("YAML", "db:\n  pass: §\n  user: ann\n", _VALUE),
    ("YAML in quotes", "password: '§'", _VALUE),
    ("JSON", '{"user": "ann", "pass": "§"}', _VALUE),
    ("JSON without blanks", '{"token":"§","user":"ann"}', _VALUE),
    ("dict of Python", "{'user': 'ann', 'password': '§'}", _VALUE),
    ("os.environ of Python", 'os.environ["WANDB_API_KEY"] = "§"', _VALUE),
    ("setdefault of Python", "os.environ.setdefault('HF_TOKEN', '§')", _VALUE),
    ("argument of Python", "wandb.login(key='§')", _VALUE),
    ("JSON in JSON", '"{\\"password\\": \\"§\\"}"', _VALUE),
    ("JSON in JSON, two words", r'"{\"password\": \"one § two\", \"n\": 1}"', _VALUE),
    ("JSON in JSON, with a quote", r'"{\"password\": \"one\\\" §\"}"', _VALUE),
    ("JSON in JSON in JSON", json.dumps(json.dumps(json.dumps({"a": {"api_key": "x §"}}))), _VALUE),
    ("JSON in JSON, four levels", json.dumps(json.dumps(json.dumps(json.dumps({"secret": "x §"})))), _VALUE),
    ("JSON in JSON, option", json.dumps(json.dumps(["train", "--token", "§"])), _VALUE),
    ("JSON, in a table of that name", '{"auth": {"password": "one §"}, "keys": [{"key": "one §"}]}', _VALUE),
    ("assignment in JSON in JSON", json.dumps(json.dumps('password="x §"')), _VALUE),
    ("JSON in a shell", r'export CONFIG="{\"db\": {\"passwd\": \"§\"}}"', _VALUE),
    ("JSON in a dict of Python", repr({"x": json.dumps({"password": "a §"})}), _VALUE),
    ("XML", "<db><user>ann</user><dbPassword>§</dbPassword></db>", _VALUE),
    ("variable of a pod, YAML", "env:\n- name: DB_PASSWORD\n  value: §\n- name: A\n  value: b", _VALUE),
    ("variable of a pod, JSON", '{"name": "HF_TOKEN", "value": "§"}', _VALUE),
    ("getenv of Python", "token = os.getenv('HF_TOKEN', '§')", _VALUE),
    ("environ of Python", 'os.environ.get("API_KEY", "§")', _VALUE),
    ("variable of fish", "set -gx API_KEY §", _VALUE),
    # programs
    ("curl -u", "curl -s -u ann:§ https://example.org/x", _VALUE),
    ("curl --user", "curl --user 'ann:§' https://example.org/x", _VALUE),
    ("curl, lines", "curl https://example.org/x?a=1&b=2 \\\n  -uann:§", _VALUE),
    ("curl, proxy", "curl --proxy-user ann:§ https://example.org", _VALUE),
    ("sshpass -p", "sshpass -p § ssh ann@host", _VALUE),
    ("sshpass -p, quoted", "sshpass -p 'one §' ssh ann@host", _VALUE),
    ("mysql -p", "mysql -h db -u ann -p§ base", _VALUE),
    ("mysqldump", "mysqldump -u ann -p§ base", _VALUE),
    ("docker login", "docker login -u ann -p § registry.example.org", _VALUE),
    ("redis-cli", "redis-cli -h db -a § ping", _VALUE),
    ("openssl", "openssl enc -d -pass pass:§ -in x", _VALUE),
    ("wandb login", "wandb login --relogin §", _HEX),
    ("netrc", "machine api.wandb.ai login user password §", _HEX),
    ("netrc, lines", "machine api.example.org\n  login ann\n  password §\n", _VALUE),
    ("pgpass", "db.example.org:5432:base:ann:§", _VALUE),
    ("pgpass of any host", "*:*:*:ann:§", _VALUE),
    ("htpasswd", "ann:$apr1$abcdefgh$§", "Hunter22SecretXyZ01234"),
    ("shadow", "ann:$6$abcdefgh$§:19000:0", _LONG),
    ("npmrc", "//registry.npmjs.org/:_authToken=§", _VALUE),
    ("pip", "pip install --index-url https://ann:§@pypi.example.org/simple x", _VALUE),
    ("Docker's file", '{"auths": {"https://index.docker.io/v1/": {"auth": "§"}}}', "YW5uOmh1bnRlcjIy"),
    ("MLflow", "export MLFLOW_TRACKING_PASSWORD=§", _VALUE),
    ("Comet", "comet_ml.init(api_key='§')", _LONG),
    ("Neptune", 'NEPTUNE_API_TOKEN="§"', _LONG),
    ("Kaggle", '{"username":"ann","key":"§"}', _HEX),
    ("aws configure", "aws configure set aws_secret_access_key §", _LONG),
    ("AWS's file", "[default]\naws_secret_access_key = §\n", _LONG),
    ("Azure, storage", "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=§;EndpointSuffix=y", f"{_LONG}=="),
    # forms of services
    ("AWS, id", "using AKIA§ now", "HUNTER22SECRETX1"),
    *[
        (kind, f"using {prefix}§ now", _LONG)
        for kind, prefix in (
            *(("GitHub", "ghp_"), ("GitHub, OAuth", "gho_"), ("GitHub, fine", "github_pat_"), ("GitLab", "glpat-")),
            *(("GitLab, deploy", "gldt-"), ("Hugging Face", "hf_"), ("OpenAI", "sk-"), ("OpenAI, project", "sk-proj-")),
            *(("Anthropic", "sk-ant-api03-"), ("Google", "AIza"), ("Google, OAuth", "ya29."), ("npm", "npm_")),
            *(("PyPI", "pypi-"), ("PyPI, as it is", "pypi-AgEIcHlwaS5vcmc"), ("Docker Hub", "dckr_pat_")),
            *(("Slack", "xoxb-"), ("Slack, app", "xapp-1-"), ("Stripe", "sk_live_"), ("Stripe, 2", "rk_test_")),
            *(("SendGrid", "SG.Hunter22SecretXyZ01234."), ("Vault", "hvs."), ("NVIDIA", "nvapi-"), ("Groq", "gsk_")),
            *(("Databricks", "dapi"), ("DigitalOcean", "dop_v1_"), ("Linear", "lin_api_")),
            *(("Replicate", "r8_"), ("Perplexity", "pplx-"), ("xAI", "xai-"), ("Tailscale", "tskey-auth-")),
        )
    ],
    ("Telegram", "bot 123456789:AA§ now", "Hunter22-Secret_XyZ0123456789abcd"),
    ("Telegram, URL", "https://api.telegram.org/bot123456789:AA§/sendMessage", "Hunter22-Secret_XyZ0123456789abcd"),
    ("Slack, webhook", "curl -d x https://hooks.slack.com/services/T00000000/B00000000/§", "Hunter22SecretXyZ"),
    ("Discord, webhook", "https://discord.com/api/webhooks/1234567890/§", "Hunter22-Secret_XyZ"),
    ("Teams, webhook", "https://x.webhook.office.com/webhookb2/1-2@3/IncomingWebhook/§/4-5", _HEX),
    ("JWT", "jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.§", "Hunter22-Secret"),
    # URLs
    ("URL, PostgreSQL", "psql postgresql://ann:§@db/base", _VALUE),
    ("URL, redis", "redis://:§@db:6379/0", _VALUE),
    ("URL, MongoDB", "mongodb+srv://ann:§@db.example.org/base?w=1", _VALUE),
    ("URL, token for a user", "git clone https://§@example.org/x.git", _LONG),
    ("URL, DSN of Sentry", "https://§@o1.ingest.sentry.io/2", _HEX),
    ("URL, JDBC", "jdbc:postgresql://db/base?user=ann&password=§&ssl=true", _VALUE),
    ("URL, token", "http://node1:8888/lab?token=§", _HEX),
    ("URL, access_token", "https://example.org/x?a=1&access_token=§", _VALUE),
    ("URL, api_key", "https://example.org/x?api_key=§&b=2", _VALUE),
    ("URL, SAS of Azure", "https://x.blob.core.windows.net/c?sv=2022&se=2030&sr=c&sp=rl&sig=§", "Hunter22%2FSecret%3D"),
    ("URL, AWS signature", "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=§&x=1", _HEX),
    ("URL, AWS credential", "https://b.s3.amazonaws.com/k?X-Amz-Credential=§", "HUNTER22%2F2030%2Fs3"),
    ("URL, AWS token", "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=§&x=1", _LONG),
    ("URL, Google signature", "https://storage.googleapis.com/b/k?x-goog-signature=§", _HEX),
    # headers
    ("header, Bearer", "curl -H 'Authorization: Bearer §'", _VALUE),
    ("header, Basic", "authorization: basic §", "YW5uOmh1bnRlcjIy"),
    ("header, Token", 'headers = {"Authorization": "Token §"}', _VALUE),
    ("header, ApiKey, JSON in JSON", json.dumps(json.dumps({"Authorization": "ApiKey §"})), _VALUE),
    ("header, key", "curl -H 'X-Api-Key: §'", _VALUE),
    ("header, GitLab", "curl -H PRIVATE-TOKEN:§ https://example.org", _VALUE),
    ("cookie", "curl -H 'Cookie: theme=dark; session=§; x=1' https://example.org", _VALUE),
    ("cookie that is set", "Set-Cookie: sid=§; Path=/; HttpOnly", _VALUE),
    ("cookie, option", "curl --cookie 'session=§' https://example.org", _VALUE),
    # private keys
    *[
        (f"key, {name}", f"x\n-----BEGIN {name}-----\n§\n-----END {name}-----\ny", _body(width))
        for name, width in (
            *(("PRIVATE KEY", 64), ("RSA PRIVATE KEY", 64), ("EC PRIVATE KEY", 64), ("OPENSSH PRIVATE KEY", 70)),
            *(("ENCRYPTED PRIVATE KEY", 64), ("PGP PRIVATE KEY BLOCK", 64)),
        )
    ],
    ("key, cut at its start", "§\n-----END RSA PRIVATE KEY-----\nTraceback", _body()),
    ("key, cut at its start, OpenSSH", "§\n-----END OPENSSH PRIVATE KEY-----\n", _body(70)),
    ("key, its last lines", "§\n-----END PGP PRIVATE KEY BLOCK-----\n", "Hunter22\n=aB3d"),
    ("key, cut at both ends", "§\nTraceback", _body().rpartition("\n")[0]),
    ("key, cut at both ends, with a prefix", "worker:0 §", _body().partition("\n")[0]),
    ("key, one line", "§", _body(70).partition("\n")[0]),
    ("key, cut at its end", "-----BEGIN RSA PRIVATE KEY-----\n§", _body()),
    ("key in JSON", r'{"x": "-----BEGIN PRIVATE KEY-----\n§\n-----END"}', _body().replace("\n", "\\n")),
    ("key, lines in JSON, cut at its start", "§\\n-----END PRIVATE KEY-----\\n\"}", _body().replace("\n", "\\n")),
]  # fmt: skip
# What looks a little like a secret.
_ORDINARY = [
    "KeyError: 'accuracy'",
    "KeyboardInterrupt",
    "keyboard: us",
    "https://example.org:8080/path@v1",
    "python train.py --tokenizer bert-base --steps 500",
    "step 3 loss 0.25",
    "if key == other:",
    "first_pass=3 bypass: on forward_pass: 12ms backward-pass=slow",
    "forward pass: 3",
    "passed=10 failed=2 passes: two",
    "PASS: test 3",
    "tests/test_x.py::test_y PASS",
    "PASS test_x",
    "bypass=on compass=north surpass: yes",
    "pass@1: 0.31 pass_rate=0.912345 pass_rate: 98.5%",
    "the password is wrong",
    "Permission denied (publickey,password).",
    "ann@host's password: ",
    "sig=0.05 sigma=0.3 significance: high",
    "signature=serving_default --signature_def serving_default",
    "PWD=/home/ann OLDPWD=/home/ann/x",
    "PWD='/home/ann'",
    'cd "$PWD"; echo pwd: /home/ann',
    '{"PWD": "/home/ann", "user": "ann"}',
    "apptainer exec --pwd /workdir x.sif train",
    "docker run -u 1000:1000 x && docker run --user 1000:1000 y",
    "curl https://example.org/x.tar.gz -o x.tar.gz\ndocker run -u 1000:1000 x",
    "srun -u python train.py",
    "git clone https://example.org/x && git clone https://ann@example.org/y",
    "git clone ssh://git@example.org/x.git",
    "docker://ubuntu:22.04@sha256:" + hashlib.sha256(b"x").hexdigest(),
    "user: ann",
    hashlib.sha256(b"x").hexdigest() + "  data.tar",
    hashlib.sha256(b"x").hexdigest(),
    hashlib.sha256(b"x").hexdigest().upper(),
    "sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode(),
    "commit " + _HEX,
    "weights: " + _body(1000),
    base64.encodebytes(b"".join(hashlib.sha512(bytes([number])).digest() for number in range(5))).decode(),
    "SHA256:" + base64.b64encode(hashlib.sha256(b"x").digest()).decode().rstrip("="),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + _body(43).partition("\n")[0] + " ann@host",
    "-----BEGIN PUBLIC KEY-----",
    "npm_config_cache=/tmp/x npm_package_dependencies_left_pad_version=1",
    "pip install pypi-mirror-of-the-institute sk-learn-contrib-of-somebody",
    "from hf_hub_download_directory import hf_transfer_is_available",
    "desk-lamps-and-other-furniture task-with-a-very-long-name risk-averse-policy-of-agents",
    "gloo-transport-of-this-cluster glibc-2.31-13+deb11u11-amd64",
    "mysql -P 3306 -h db; mkdir -p /tmp/x",
    "mysql -u ann --port 3306; ssh login -p 2222",
    "module load mysql; mkdir -p /scratch/ann",
    "ssh login mkdir -p /scratch/ann; see https://core.telegram.org/bots/features-of-bots",
    '{"max_tokens": 512, "key_dim": 64}',
    "Basic statistics of bearer channels",
    "wandb login",
    "wandb: run wandb login to sync",
    "login failed, password expired",
    "machine learning login",
    "cookie = chocolate; cookies: yes",
    "node1:8080:rank:0:loss=3",
    "main.cc:12:5: error: expected",
    "awk '{print $1$2}' x; echo $6$HOME",
    "setup complete, set key frames to 3",
    "Token indices sequence length is longer than 512",
    "tokenizers_parallelism: no",
    "https://hooks.slack.com is down; see https://api.telegram.org/bots",
    "12345:AAA 1690000000:AB",
    "https://example.org/x?sigma=0.5&design=fast&assign=long-value-of-it",
    "monkeys=3 author: ann authors: ann, bob",
    "/home/User/Project/Data/Images/Training/Set/One/Two/Three/Abcdef",
    "- name: batch\n  value: 64\n- name: num_tokens\n  value: 512",
    "set -euxo pipefail; os.getenv('HOME', '/root')",
    "<keyboard>us</keyboard> <b>3</b>",
]


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


@pytest.mark.parametrize(("text", "hidden"), [pytest.param(*rest, id=kind) for kind, *rest in _KINDS])
def test_kinds_of_secrets_are_masked(text: str, hidden: str) -> None:
    shown = Masker().text(text.replace("§", hidden))
    assert MASK in shown
    assert [part for part in hidden.replace("\\n", "\n").split("\n") if part in shown] == []


def test_json_in_json_is_still_json_and_has_the_rest() -> None:
    inside = {"name": "x", "password": "hunter22secret", "command": ["train", "--token", "hunter33-secret"], "n": 512}
    shown = Masker().text(json.dumps({"config": json.dumps(inside), "api_key": "hunter44-secret", "end": 1}))
    masked = {**inside, "password": MASK, "command": ["train", "--token", MASK]}
    assert json.loads(shown) == {"config": json.dumps(masked, ensure_ascii=False), "api_key": MASK, "end": 1}


def test_secret_in_json_in_json_is_masked_where_it_stands_alone() -> None:
    text = json.dumps({"config": json.dumps({"password": "hunter22 secret", "n": 1})})
    assert Masker(given(text)).text("logged in as hunter22 secret") == f"logged in as {MASK}"


@pytest.mark.parametrize("begin", [0, 1, 3, 6])
@pytest.mark.parametrize("width", [64, 70])
def test_lines_of_a_private_key_are_masked_one_by_one(begin: int, width: int) -> None:
    body = _body(width).split("\n")
    first, last = "-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"
    lines = ["step 4", first, *body, last, "step 5", ""][begin:]
    assert Masker().value("tail", lines) == [
        f"{line}{MASK}" if line == first else MASK if line in body else line for line in lines
    ]
    full = body[begin:-1]
    assert Masker().value("tail", [*full, "step 5"]) == [*([MASK] * len(full)), "step 5"]


def test_keys_of_services_are_masked_by_their_form() -> None:
    assert Masker().text("id AKIAIOSFODNN7EXAMPLE end") == f"id {MASK} end"
    assert "eyJhbGci" not in Masker().text("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_d")


@pytest.mark.parametrize("text", _ORDINARY)
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


@pytest.mark.thorough
def test_long_lines_take_no_time() -> None:
    line = "a" * 300_000 + " KEY" + "_" * 300_000
    assert Masker().text(line) == line
    for word in ("key", "--key"):  # as in a long word of base64
        assert Masker().text(word * 100_000) == word * 100_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    fast(
        4,
        *("a", "/", "-", "\\", " ", "\n", "://", "sk-", "?sig=", "eyJ", "Ab3", "://a:", "1:", "basic ", "pass", "$2a$"),
        *(
            " \t",
            'password=\\"',
            "key='",
            'key="a\n',
            "curl -u ",
            "mysql ",
            "password login default ",
            "-----END PRIVATE\n",
        ),
        *(
            "cookie: ",
            "Cookie:",
            "-----BEGIN PRIVATE KEY",
            "name: key value ",
            "<key>",
            "wandb login ",
            ":5432:a",
            "a\n",
            "SG.-",
        ),
    ),
)
@pytest.mark.timeout(300)  # they take a second; the square of their length would be hours
def test_long_texts_of_anything_take_no_square_of_their_length(text: str) -> None:
    long = text * (300_000 // len(text))
    assert Masker().text(f"-----BEGIN sig= PRIVATE $2 *: password :// key ={long} key").startswith("-----BEGIN")


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
