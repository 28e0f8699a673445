"""Writes gridtf/login/shipped.py, the shipped template as Python: `gridtf render` and `submit` would need as long for
Jinja2 as for all else.

    python scripts/template.py      after a change of templates/job.sh.j2

tests/unit/login/test_shipped.py compares what is there with what this makes, and both with Jinja2.
"""

from __future__ import annotations

import binascii
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from jinja2 import nodes

from gridtf import resources
from gridtf.login import templates
from gridtf.login.filters import FILTERS

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "gridtf/login/shipped.py"
_HEAD = """\
\"\"\"templates/{template} as Python, made by scripts/template.py: change the template, not this file.\"\"\"

# ruff: noqa: E501

from collections.abc import Iterator, Mapping
from typing import Any

from gridtf.login.filters import {filters}

CHECKSUM = {checksum}  # of the template, CRC-32


def script(names: Mapping[str, Any]) -> str:
    \"\"\"The job script from the shipped template.

    Args:
        names: The names that templates can use.
    \"\"\"
    return "".join(_script(names))
"""


def module() -> str:
    """The text of the module."""
    data = (ROOT / "templates" / resources.COMMON).read_bytes()
    tree = templates.environment().parse(data.decode())
    head = _HEAD.format(
        template=resources.COMMON, filters=", ".join(sorted(FILTERS)), checksum=hex(binascii.crc32(data))
    )
    parts = [head, _function("script", tree.body)]
    parts += [_function(block.name, block.body) for block in tree.find_all(nodes.Block)]
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input="\n\n".join(parts), capture_output=True, text=True, check=True).stdout


def _function(name: str, body: list[nodes.Node]) -> str:
    lines = [f"    {line}" for node in body for line in _statement(node, frozenset())]
    return "\n".join([f"def _{name}(names: Mapping[str, Any]) -> Iterator[str]:", *lines, ""])


def _statement(node: nodes.Node, own: frozenset[str]) -> Iterator[str]:
    """The lines of a statement; own: the variables of the loops around it."""
    if isinstance(node, nodes.Output):
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                lines = part.data.splitlines(keepends=True)
                text = " ".join(map(repr, lines))
                yield f"yield ({text})" if len(lines) > 1 else f"yield {text}"
            else:
                yield f"yield {_expression(part, own)}"
    elif isinstance(node, nodes.Block):
        yield f"yield from _{node.name}(names)"
    elif isinstance(node, nodes.If) and not node.elif_:
        yield f"if {_expression(node.test, own)}:"
        yield from _indented(node.body, own)
        if node.else_:
            yield "else:"
            yield from _indented(node.else_, own)
    elif isinstance(node, nodes.For) and not (node.test or node.else_ or node.recursive):
        targets = node.target.items if isinstance(node.target, nodes.Tuple) else [node.target]
        names = [target.name for target in targets if isinstance(target, nodes.Name)]
        yield f"for {', '.join(names)} in {_expression(node.iter, own)}:"
        yield from _indented(node.body, own | {*names})
    else:
        raise SystemExit(f"{resources.COMMON}:{node.lineno}: no rule for {node}")


def _indented(body: list[nodes.Node], own: frozenset[str]) -> Iterator[str]:
    return (f"    {line}" for node in body for line in _statement(node, own))


def _expression(node: nodes.Node | None, own: frozenset[str]) -> str:
    match node:
        case nodes.Name(name=name):
            return name if name in own else f"names[{name!r}]"
        case nodes.Const(value=value):
            return repr(value)
        case nodes.Filter(node=value, name="trim", args=[]):
            return f"({_expression(value, own)}).strip()"
        case nodes.Filter(node=value, name=name, args=[]) if name in FILTERS:
            return f"{name}({_expression(value, own)})"
        case nodes.Call(node=nodes.Getattr(node=nodes.Name(name="self"), attr=block), args=[]):
            return f"''.join(_{block}(names))"
        case nodes.Call(node=nodes.Getattr() as method, args=[]):
            return f"{_expression(method, own)}()"
        case nodes.Getattr(node=value, attr=attribute):
            return f"{_expression(value, own)}.{attribute}"
        case nodes.CondExpr(test=test, expr1=one, expr2=other):
            return f"{_expression(one, own)} if {_expression(test, own)} else {_expression(other, own)}"
    raise SystemExit(f"{resources.COMMON}: no rule for {node}")


if __name__ == "__main__":
    TARGET.write_text(module(), encoding="utf-8")
