"""Completes command lines in a shell: ``sfactory completion SHELL`` prints what the shell's start-up file evaluates.

The shells call the same command with the words typed so far, and get one candidate a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import get_type_hints

from sfactory.cli.commands import SUBCOMMANDS
from sfactory.config.argv import CONFIG, PRINT_CONFIG, asks_for_help
from sfactory.config.env_families import load_families
from sfactory.config.flags import Flag
from sfactory.config.schema import Config
from sfactory.errors import ConfigError
from sfactory.process.command import Command

# bash breaks words at "=", so candidates lose what is before it. Without candidates, shells complete names of files.
SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        "bash": """\
_sfactory() {
    local IFS=$' \\t' words word
    read -r -a words <<< "${COMP_LINE:0:COMP_POINT}"
    word=${words[-1]}
    [[ "${COMP_LINE:0:COMP_POINT}" == *[[:space:]] ]] && word= || unset 'words[-1]'
    IFS=$'\\n'
    COMPREPLY=($("$1" completion words "${words[@]:1}" -- "$word" 2>/dev/null))
    [[ "$word" == *=* && "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${COMPREPLY[@]#*=}")
}
complete -o default -F _sfactory sfactory
""",
        "zsh": """\
#compdef sfactory
_sfactory() {
    local -a found
    found=(${(f)"$(sfactory completion words "${(@)words[2,CURRENT-1]}" -- "${words[CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _sfactory sfactory
""",
        "fish": """\
complete -c sfactory -a '(sfactory completion words (commandline -opc)[2..] -- (commandline -ct) 2>/dev/null)'
""",
    }
)
_USAGE = f'usage: sfactory completion {"|".join(SCRIPTS)}, in bash: eval "$(sfactory completion bash)" in ~/.bashrc'


def main(argv: Sequence[str] | None = None) -> int:
    """Print the script of a shell, or the candidates for ``words WORD ... -- BEGINNING``; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with Command("sf-completion") as command:
        if arguments[:1] == ["words"] and "--" in arguments:
            cut = len(arguments) - 1 - arguments[::-1].index("--")
            print("\n".join(candidates(arguments[1:cut], "".join(arguments[cut + 1 :]))))
        elif asks_for_help(arguments):
            print(_USAGE)
        elif len(arguments) == 1 and arguments[0] in SCRIPTS:
            print(SCRIPTS[arguments[0]], end="")
        else:
            raise ConfigError([_USAGE])
    return command.exit_code


def candidates(words: Sequence[str], beginning: str) -> list[str]:
    """The words that begin with ``beginning`` and may follow ``words``, which come after ``sfactory``."""
    return sorted(word for word in _next(words, beginning) if word.startswith(beginning))


def _next(words: Sequence[str], beginning: str) -> Iterable[str]:
    if not words:
        return SUBCOMMANDS
    if words[0] == "completion":
        return SCRIPTS
    subcommand = SUBCOMMANDS.get(words[0].replace("_", "-"))
    if subcommand is None:
        return ()
    flags, trains = dict(subcommand.known_flags()), subcommand.module == "sfactory.train"
    if trains:
        flags |= {flag.name: flag for flag in (CONFIG, PRINT_CONFIG)}
    typed, equals, _ = beginning.removeprefix("--").partition("=")
    name = typed.replace("-", "_")
    if beginning.startswith("--") and equals:
        values = ["all", *get_type_hints(Config)] if name == "help" and trains else _values(flags.get(name))
        return [f"{beginning.partition('=')[0]}={value}" for value in values]
    before = words[-1].removeprefix("--").replace("-", "_")
    if words[-1].startswith("--") and before in flags and not beginning.startswith("-"):
        values = _values(flags[before])
        if values or flags[before].type is not bool:
            return values
    written = [flag.replace("_", "-") for flag in flags] if "-" in typed else list(flags)
    return [f"--{flag}" for flag in (*written, "help")] if flags else ()


def _values(flag: Flag | None) -> Sequence[str]:
    """What the flag may be set to; () if that is no short list."""
    if flag is None:
        return ()
    if flag.name == "env":
        return [name for family in load_families()[0] for name in family.names()]
    return ("True", "False") if flag.type is bool else flag.choices


if __name__ == "__main__":
    sys.exit(main())
