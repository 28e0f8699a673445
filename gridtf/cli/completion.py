"""gridtf completion: the code for a shell, and the completer that this code calls."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from argcomplete.completers import ChoicesCompleter, FilesCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.shell_integration import shellcode

from gridtf.cli import COMMANDS, output
from gridtf.cli.common import find_command, new_parser
from gridtf.jobspec.arguments import Parser

SHELLS = ("bash", "zsh", "fish")
_FILES = ("JOBFILE", "FILE", "DIR", "PROGRAM", "IMAGE")  # metavars of paths


def parser(**more: Any) -> Parser:
    made = new_parser("completion", "bash|zsh|fish", (), **more)
    made.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="for which shell")
    made.epilog = (
        'in ~/.bashrc:                eval "$(gridtf completion bash)"\n'
        'in ~/.zshrc:                 eval "$(gridtf completion zsh)"\n'
        "in ~/.config/fish/config.fish:  gridtf completion fish | source"
    )
    return made


def run(arguments: Namespace) -> int:
    output.write(code(arguments.shell))
    return 0


def code(shell: str) -> str:
    """The code for one of SHELLS, which asks gridtf itself at each Tab."""
    return f"{shellcode(['gridtf'], use_defaults=False, shell=shell)}\n"  # complete() offers files where they fit


def complete() -> int:
    """Print completions for the command line in COMP_LINE (argcomplete's protocol).

    Returns:
        0, if argcomplete does not exit the process itself.
    """
    top = Parser("gridtf")
    commands = top.add_subparsers()
    for name, summary in COMMANDS.items():
        made = find_command(name).parser(add_help=False)
        for action in made._actions:
            if action.metavar in _FILES:
                action.completer = FilesCompleter()  # type: ignore[attr-defined]
        commands.add_parser(name, parents=[made], help=summary, prog=made.prog)
    _Finder()(top, always_complete_options="long", default_completer=ChoicesCompleter({}))
    return 0


class _Finder(CompletionFinder):
    def collect_completions(self, active_parsers: Any, parsed_args: Any, cword_prefix: str) -> list[str]:
        if self.always_complete_options is not False:
            return super().collect_completions(active_parsers, parsed_args, cword_prefix)
        paths = FilesCompleter()(cword_prefix)  # after --, in the user's command, argcomplete turns options off
        self.get_display_completions().update(dict.fromkeys(paths, ""))
        return paths
