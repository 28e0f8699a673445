"""gridtf import: a job file from the description of a job that something else ran."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from gridtf import files
from gridtf.cli import output
from gridtf.cli.common import new_parser
from gridtf.errors import GridtfError, NotFoundError, UsageError
from gridtf.jobspec import tfjob
from gridtf.jobspec.arguments import Parser
from gridtf.text import plain


def parser(**more: Any) -> Parser:
    made = new_parser("import", "tfjob FILE", ("tfjob mnist.yaml > gridtf.toml",), **more)
    made.add_argument("kind", metavar="tfjob", choices=("tfjob",), help="a TFJob of Kubeflow's training operator")
    made.add_argument("file", metavar="FILE", help="its manifest, in YAML")
    return made


def run(arguments: Namespace) -> int:
    import yaml  # only this command needs it

    name = arguments.file
    try:
        data, _ = files.read(Path(name), name)
        documents = list(yaml.safe_load_all(data.decode("utf-8-sig")))
    except FileNotFoundError:
        raise NotFoundError(f"no such file: {name}") from None
    except OSError as error:
        raise GridtfError(f"cannot read {name}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark else name
        raise UsageError(f"{place}: it is not YAML: {getattr(error, 'problem', None) or error}") from None
    converted = tfjob.convert(documents, name)
    for note in converted.notes:
        output.message(f"gridtf: {plain(note)}")
    output.write(converted.text)
    return 0
