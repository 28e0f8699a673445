"""Masks what looks like a secret in what others may see: a report, what `gridtf render` prints. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "••••••"
# A value of a secret variable that is masked wherever it occurs: no ordinary word, such as SORT_KEY=worker.
_UNIQUE = re.compile(r"(?![a-z]{1,15}$).{6,}", re.DOTALL)
# Names of secrets; not TOKENIZER, AUTHOR, KEYBOARD, KeyError, forward_pass, bypass, pass_rate, the outcome "PASS: x".
_SECRETS = (
    r"(?=[KTSPCA._-])(?:KEY(?!BOARD|ERROR|WORD)|TOKEN(?!I[ZS])|SECRET|PASS(?:W(?:OR)?D|PHRASE|CODE)|CREDENTIAL"
    r"|AUTH(?!ORS?(?![A-Z]))|(?<!WARD)[._-](?:PASS|PWD)(?![A-Z])"
    r"|(?:(?<![A-Z._])(?<!WARD-)|(?<=SSH)|(?<=PG)|(?<=DB)|(?<=SQL)|(?<=USER)|(?<=ROOT))"
    r"(?:PASS(?!:)|(?<!\w )(?-i:pass)|PWD)(?![\w.-]))"
)
_NAME = re.compile(_SECRETS, re.IGNORECASE)
_PASSWORD = re.compile(r"PASS[WPC]", re.IGNORECASE)  # not first_pass=3
# A value in quotes, with a backslash more at each level of JSON in JSON: \"…\", then \\\"…\\\"; and nothing more.
_END = r"(?=(?:\\*[\"'])?(?:[\s,;|&})\]]|\\n|$))"
_QUOTED = rf"""(?P<quote>\\*["'])(?P<inner>(?:(?!(?<!\\)(?P=quote)).)*)(?P=quote){_END}"""
# A word of a shell, of JSON or of TOML: its parts may be quoted.
_WORD = rf"""(?P<value>{_QUOTED}|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\;|&])+)"""
# No table follows, of which a key may be secret.
_EQUALS = r"(?:\\*[\"'])?\]?[ \t]{0,99}[=:][ \t]{0,99}(?!=|\[?\s{0,99}\{\s{0,99}\\*[\"'])"
_REST = r"[\w.-]{0,99}"  # of a name; without a limit, a long word would take the square of its length
_FULL = rf"{_REST}{_SECRETS}{_REST}"
_ASSIGNED = re.compile(rf"(?i)(?P<name>(?<![\w.-]){_FULL})(?P<between>{_EQUALS}){_WORD}")
# an option and its value, as words of a shell, or of a list in JSON; and what sets a variable
_OPTION = re.compile(
    r"(?P<name>(?=[-SGPEC])(?:(?<![\w.-])--|\b(?:[sg]etenv|putenv|environ\.get|setdefault|set -\w*x|(?-i:ENV)|"
    rf"config(?:ure)? set)[ \t(]+[\"']?){_FULL})(?P<between>[ \t]+|\\*[\"'],\s*)(?!\\*[\"']?-){_WORD}",
    re.IGNORECASE,
)
_OPTION_ALONE = re.compile(rf"--?[\w.-]*{_SECRETS}[\w.-]*", re.IGNORECASE)
# What cannot be a secret: numbers of a few digits, such as the size of a key, and references to variables.
_HARMLESS = re.compile(r"true|false|none|null|-?\d{0,4}(?:\.\d*)?%?|\$\{?\w+\}?", re.IGNORECASE)
_OFTEN = ("key", "token", "secret", "pass", "pwd", "credential", "auth")  # a text without them has no such name
# What keys of services begin with.
_SERVICES = """ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- hf_ npm_ pypi- dckr_pat_ sk- sk_live_ sk_test_
rk_live_ rk_test_ gsk_ xox xapp- AIza ya29. GOCSPX- SG. hvs. nvapi- dapi dop_v1_ lin_api_ r8_ pplx- xai- tskey- NRAK-
AGE-SECRET-KEY-1"""
_GAP = r"\b(?:(?!&&)[^\n;|]|\\\n){0,200}?[ \t]"  # between a command and its option
_VALUE = r"('[^'\n]*'|\"[^\"\n]*\"|[^\s'\";|&]+)"
_NAN, _IS = r"(?!\d+\b)", r"[\\\"']{0,9}:[ \t]{0,9}[\\\"']{0,9}"  # no number; after a key of YAML or JSON
_BEGUN = r"(?:(?<![\w+/=\\-])|(?<=\\n))"  # where a line of base64 may begin, also in a text in quotes
_MIXED = r"(?=[a-z\d+/]{0,69}[A-Z])(?=[A-Z\d+/]{0,69}[a-z])(?!(?:\w*/){5})"  # no checksum, no word, no path
_LAST = rf"{_BEGUN}(?=(?:[\w+/=]+(?:\s|\\+[nr])+){{1,2}}-----END [A-Z ]*PRIVATE)"
_KEY = re.compile(rf"(?:-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----|{_LAST})((?s:.*?))(?:-----END|\Z)")
# What is a secret by its form, in a group: the password of a URL, and what services call their keys. In front of each
# is what such a text contains, which is found much faster.
_FORMS = tuple(
    (parts.split() or [""], re.compile(form))
    for parts, form in (
        ("://", r"(?<=://)(?:[^\s/:@'\"]*:|(?=\D{0,40}\d)(?=[^\s/:@'\"]{20}))([^\s/'\"]+)(?=@(?!sha256:))"),
        ("AKIA ASIA", r"\b((?:AKIA|ASIA)[0-9A-Z]{16})\b"),
        (_SERVICES, rf"\b((?:{'|'.join(_SERVICES.split())})(?=[a-z_-]{{0,40}}[A-Z\d])[\w-]{{16,}}(?:\.[\w-]{{16,}})?)"),
        (":AA", r"\d{8,10}:(AA[\w-]{30,})"),
        ("slack webhook", r"(?:hooks\.slack\.com/\w+|/webhook(?:s|b2))/(?=\D{0,9}\d)([\w/@-]{16,})"),
        ("eyJ", r"\b(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"),
        ("earer asic", r"\b[Bb](?:earer|asic)[ \t]+(?=[a-z.-]{0,40}[A-Z\d_~+/=])([\w.~+/=-]{8,})"),
        ("uthorization", r"\b[Aa]uthorization[\\\"']*[ \t]*[=:][ \t]*[\\\"']*[\w-]+[ \t]+([^\s\\\"']{8,})"),
        ("ookie", r"(?:\b[Cc]ookie[\\\"']*:[ \t]*|--cookie[ =])[\\\"']*([^\s=]{1,99}=[^\n\\\"']+)"),
        ("sig= ignature=", r"(?i:[?&][\w-]{0,30}sig(?:nature)?=)([^\s&\\'\"]{16,})"),
        ("$apr1$ $argon2 $2 $5$ $6$ $y$", r"(\$(?:apr1|argon2\w*|2[aby]|[56y])\$(?:[\w./=,+-]{1,60}\$)+[\w./+]{16,})"),
        ("curl", rf"\bcurl{_GAP}(?:-[uU]|--(?:proxy-)?user)[ \t=]*[\"']?(?!\d+:\d+\b)[^\s:\"']+:(?!\$)([^\s\"']+)"),
        (
            "sshpass mysql login redis",
            rf"(?:sshpass|mysql\w{{0,9}}|docker login|redis-cli){_GAP}-[ap][ \t]*{_NAN}{_VALUE}",
        ),
        ("wandb", rf"\bwandb login{_GAP}(\w{{32,}})"),
        ("</", rf"(?i)<{_FULL}>([^<\n]+)</"),
        ("value", rf"(?i)\bname{_IS}{_FULL}[\\\"',]{{0,9}}\s[\\\"'\s]{{0,40}}value{_IS}{_NAN}([^\s\\\"',}}]+)"),
        ("password pass:", r"(?:(?:machine\s+\S+|default)\s+login\s+\S+\s+password\s+|-pass\w* pass:)([^\s\\\"']+)"),
        (":543 *:", r"[\w*]:(?:543\d|\*):[^\s:]+:[^\s:]+:([^\s\\\"']+)"),
        ("PRIVATE", _KEY),
        ("", rf"{_BEGUN}{_MIXED}([A-Za-z\d+/]{{64}}(?:[A-Za-z\d+/]{{6}})?)(?![\w+/=-])"),  # a line of a key
    )
)


class Masker:
    """Masks secrets in the texts of one job.

    Args:
        tables: Tables with environment variables of the job: the values of those that are secrets by their names are
            masked wherever they occur.
    """

    def __init__(self, tables: Iterable[Mapping[str, Any]] = ()) -> None:
        known = [value for table in tables for name, value in table.items() if secret(name, value)]
        forms = {form for value in known if _UNIQUE.fullmatch(str(value)) for form in _forms(str(value))}
        longest = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None

    def text(self, text: str) -> str:
        """A text, such as a script or lines of a log, with the secrets in it masked."""
        if self._known:
            text = self._known.sub(MASK, text)
        for parts, form in _FORMS:
            if any(map(text.__contains__, parts)):
                text = form.sub(_without_group, text)
        if not any(map(text.casefold().__contains__, _OFTEN)):
            return text
        return _ASSIGNED.sub(_without_value, _OPTION.sub(_without_value, text))

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of a command line, masked; also the word after an option such as ``--token``."""
        return [*self._words(words)]

    def value(self, name: str, value: Any) -> Any:
        """The value of a key or a variable, masked; also in tables and lists.

        Args:
            name: The key.
            value: Plain values, as JSON has them.
        """
        if secret(name, value):
            return MASK
        if isinstance(value, Mapping):
            return {key: self.value(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            texts = all(isinstance(item, str) for item in value)
            return self.words(value) if texts else [self.value(name, item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _words(self, words: Sequence[str]) -> Iterator[str]:
        text = "\n".join(words)  # the lines of a log may have a key
        key = {line for part in _KEY.findall(text) for line in part.split("\n") if line} if "PRIVATE" in text else ()
        after = ""
        for word in words:
            masked = after and not word.startswith("-") and secret(after, word)
            yield MASK if masked or word in key else self.text(word)
            after = word if _OPTION_ALONE.fullmatch(word) else ""


def given(text: str) -> Iterator[dict[str, str]]:
    """The secrets that a text gives by name, such as a script by ``export API_KEY=…``: tables for a Masker."""
    for match in (*_ASSIGNED.finditer(text), *_OPTION.finditer(text)):
        value = match["inner"] or re.split(r"\\*[\"']", match["value"].lstrip("'\""))[0]  # in JSON, more follows
        if secret(match["name"], value):
            yield {match["name"]: value}


def secret(name: str, value: Any) -> bool:
    """Whether a value is a secret by its name.

    Args:
        name: Of a variable, a key or an option.
        value: The value; a table is none itself.
    """
    if isinstance(value, Mapping | list | tuple) or value is None or not _NAME.search(name):
        return False
    folder = "pwd" in name.casefold() and str(value).startswith("/")
    return bool(_PASSWORD.search(name)) or not (folder or _HARMLESS.fullmatch(str(value)))


def _forms(value: str) -> tuple[str, ...]:
    """A value as it is, as JSON has it, and as that stands in quotes of a shell."""
    quoted = json.dumps(value)[1:-1]
    return value, quoted, value.replace("'", "'\\''"), quoted.replace("'", "'\\''")


def _without_value(match: re.Match[str]) -> str:
    if not secret(match["name"], match["value"].strip("\\'\",;)]}")):
        return match[0]
    quote = match["quote"] or ""
    return f"{match['name']}{match['between']}{quote}{MASK}{quote}"


def _without_group(match: re.Match[str]) -> str:
    start, end = match.span(1)
    return match[0][: start - match.start()] + MASK + match[0][end - match.start() :]
