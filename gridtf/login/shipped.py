"""templates/job.sh.j2 as Python, made by scripts/template.py: change the template, not this file."""

# ruff: noqa: E501

from collections.abc import Iterator, Mapping
from typing import Any

from gridtf.login.filters import comment, directive, quote, quote_json, quote_rows

CHECKSUM = 0xFBA63363  # of the template, CRC-32


def script(names: Mapping[str, Any]) -> str:
    """The job script from the shipped template.

    Args:
        names: The names that templates can use.
    """
    return "".join(_script(names))


def _script(names: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(names)
    yield from _banner(names)
    yield "\n"
    if ("".join(_setup(names))).strip():
        yield "# shellcheck disable=SC1003,SC2016,SC1090,SC1091  # values are literal; files that set-up lines source are not checked\n"
    else:
        yield "# shellcheck disable=SC1003,SC2016  # values are literal\n"
    yield (
        '\n_gridtf_stop() {\n    trap - EXIT\n    printf \'gridtf: %s: %s\\n\' "${HOSTNAME}" "$1" >&2\n    exit 1\n}\n'
    )
    yield from _chdir(names)
    if ("".join(_setup(names))).strip():
        yield (
            "\n"
            "# Set-up: the first line that fails ends the job; failures inside functions and sourced files do not count\n"
            "_gridtf_setup_failed() {\n"
            '    [ "${#BASH_SOURCE[@]}" -gt 2 ] && return\n'
            "    # without its text, which may contain a key: other users may read the log\n"
            '    local place="set-up line $(($2 - _gridtf_above))${_gridtf_source:+ (${_gridtf_source})}"\n'
            '    _gridtf_stop "${place} failed with exit code $1: line $2 of the job script"\n'
            "}\n"
            "_gridtf_setup_ended() {\n"
            "    trap '' TERM\n"
            '    kill -- "-$$" 2>/dev/null || : # programs that a line still runs when a signal ends the script\n'
            '    _gridtf_stop "the job script ended during its set-up, by itself or by a signal (exit code $1)"\n'
            "}\n"
            'trap \'_gridtf_setup_failed "$?" "${LINENO}"\' ERR\n'
            "trap '_gridtf_setup_ended \"$?\"' EXIT\n"
            "_gridtf_source="
        )
        yield quote(names["template"] if names["spec"].template else "")
        yield " _gridtf_above=${LINENO}\n"
        yield from _setup(names)
        yield "trap - ERR EXIT\n"
    yield from _environment(names)
    yield from _launch(names)


def _head(names: Mapping[str, Any]) -> Iterator[str]:
    yield "#!/bin/bash\n"
    yield from _directives(names)


def _directives(names: Mapping[str, Any]) -> Iterator[str]:
    for line in names["directives"]:
        yield directive(names["directive_prefix"])
        yield " "
        yield directive(line)
        yield "\n"


def _banner(names: Mapping[str, Any]) -> Iterator[str]:
    yield ("#\n# Job ")
    yield comment(names["name"])
    yield ", rendered by gridtf "
    yield comment(names["version"])
    yield " for "
    yield comment(names["scheduler"])
    yield " from "
    yield comment(names["template"])
    yield ("\n# Run directory: ")
    yield comment(names["run_dir"])
    yield "\n"


def _chdir(names: Mapping[str, Any]) -> Iterator[str]:
    if names["chdir"]:
        yield ("\ncd -- ")
        yield quote(names["chdir"])
        yield " || _gridtf_stop 'cannot change to the working folder on this host: see --chdir'\n"


def _setup(names: Mapping[str, Any]) -> Iterator[str]:
    for source, lines in names["setup_by_source"]:
        if source:
            yield "_gridtf_source="
            yield quote(source)
            yield " _gridtf_above=${LINENO}\n"
        for line in lines:
            yield line
            yield "\n"


def _environment(names: Mapping[str, Any]) -> Iterator[str]:
    if names["env"]:
        yield ("\n# Environment of all tasks\n")
        for key, value in names["env"].items():
            yield "export "
            yield quote(key)
            yield "="
            yield quote(value)
            yield "\n"


def _launch(names: Mapping[str, Any]) -> Iterator[str]:
    yield ("\nexport GRIDTF_RUN_DIR=")
    yield quote(names["run_dir"])
    yield ("\nexport GRIDTF_PYTHON=")
    yield quote(names["python"])
    yield ("\nexport GRIDTF_SPEC=")
    yield quote_json(names["job"])
    yield ("\nexport GRIDTF_REQUEST=")
    yield quote_rows(names["request"])
    yield ("\n\n# shellcheck source=/dev/null\nsource ")
    yield quote(names["bootstrap"])
    yield (" || _gridtf_stop 'gridtf is not installed on this host: install it in a shared folder'\ngridtf_exec\n")
