"""Masks what looks like a secret in what others may see: a report, what `gridtf render` prints. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MASK = "••••••"
# A value of a secret variable that is masked wherever it occurs: no ordinary word, such as SORT_KEY=worker.
_UNIQUE = re.compile(r"(?![a-z]{1,15}$).{6,}", re.DOTALL)
# Names of secrets; not TOKENIZER, AUTHOR, KEYBOARD, KeyError, forward_pass.
_SECRETS = (
    r"(?:KEY(?!BOARD|ERROR|WORD)|TOKEN(?!I[ZS])|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|AUTH(?!ORS?(?![A-Z]))"
    r"|(?<!WARD)[._-](?:PASS|PWD)(?![A-Z]))"
)
_NAME = re.compile(_SECRETS, re.IGNORECASE)
_PASSWORD = re.compile(r"PASS[WP]", re.IGNORECASE)  # not first_pass=3
# A word of a shell, of JSON or of TOML: its parts may be quoted.
_WORD = r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\;|&])+"""
_REST = r"[\w.-]{0,99}"  # of a name; without a limit, a long word would take the square of its length
_FULL = rf"(?<![\w.-]){_REST}{_SECRETS}{_REST}"
_ASSIGNED = re.compile(rf"(?P<name>{_FULL})(?P<between>[\"']?[ \t]*[=:][ \t]*(?!=))(?P<value>{_WORD})", re.IGNORECASE)
# an option and its value, as words of a shell, or of a list in JSON
_OPTION = re.compile(
    rf"(?P<name>(?<![\w.-])--{_REST}{_SECRETS}{_REST})(?P<between>[ \t]+|[\"'],\s*)(?P<value>(?![\"']?-){_WORD})",
    re.IGNORECASE,
)
_OPTION_ALONE = re.compile(rf"--?[\w.-]*{_SECRETS}[\w.-]*", re.IGNORECASE)
# What cannot be a secret: numbers of a few digits, such as the size of a key, and references to variables.
_HARMLESS = re.compile(r"true|false|none|null|-?\d{0,4}(?:\.\d*)?|\$\{?\w+\}?", re.IGNORECASE)
_OFTEN = ("key", "token", "secret", "pass", "pwd", "credential", "auth")  # a text without them has no such name
# What is a secret by its form, in a group: the password of a URL, and what services call their keys. In front of each
# is what such a text contains, which is found much faster.
_FORMS = tuple(
    (parts.split(), re.compile(form, re.DOTALL))
    for parts, form in (
        ("://", r"(?<=://)[^\s/:@'\"]*:([^\s/'\"]+)(?=@)"),
        ("AKIA ASIA", r"\b((?:AKIA|ASIA)[0-9A-Z]{16})\b"),
        ("gh hf_ glpat sk- xox AIza", r"\b((?:gh[pousr]_|github_pat_|hf_|glpat-|sk-|xox[abprs]-|AIza)[\w-]{16,})"),
        ("eyJ", r"\b(eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"),
        ("earer asic", r"\b[Bb](?:earer|asic)[ \t]+([\w.~+/=-]{8,})"),
        ("uthorization", r"\b[Aa]uthorization[\"']?[ \t]*[=:][ \t]*[\"']?[\w-]+[ \t]+([^\s\"']{8,})"),
        ("PRIVATE", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)(?:-----END|\Z)"),
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
            if any(part in text for part in parts):
                text = form.sub(_without_group, text)
        if not any(map(text.casefold().__contains__, _OFTEN)):
            return text
        return _OPTION.sub(_without_value, _ASSIGNED.sub(_without_value, text))

    def words(self, words: Iterable[str]) -> list[str]:
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

    def _words(self, words: Iterable[str]) -> Iterator[str]:
        after = ""
        for word in words:
            yield MASK if after and not word.startswith("-") and secret(after, word) else self.text(word)
            after = word if _OPTION_ALONE.fullmatch(word) else ""


def given(text: str) -> Iterator[dict[str, str]]:
    """The secrets that a text gives by name, such as a script by ``export API_KEY=…``: tables for a Masker."""
    for match in (*_ASSIGNED.finditer(text), *_OPTION.finditer(text)):
        quotes = match["value"][0] if match["value"][0] in "'\"" else "'\""
        value = re.split(f"[{quotes}]", match["value"].lstrip(quotes))[0]  # in JSON, more follows
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
    return bool(_PASSWORD.search(name)) or not _HARMLESS.fullmatch(str(value))


def _forms(value: str) -> tuple[str, ...]:
    """A value as it is, as JSON has it, and as that stands in quotes of a shell."""
    quoted = json.dumps(value)[1:-1]
    return value, quoted, value.replace("'", "'\\''"), quoted.replace("'", "'\\''")


def _without_value(match: re.Match[str]) -> str:
    value = match["value"]
    quote = value[0] if value[0] in "'\"" and value[-1] == value[0] else ""
    if not secret(match["name"], value.strip("'\"")):
        return match[0]
    return f"{match['name']}{match['between']}{quote}{MASK}{quote}"


def _without_group(match: re.Match[str]) -> str:
    start, end = match.span(1)
    return match[0][: start - match.start()] + MASK + match[0][end - match.start() :]
