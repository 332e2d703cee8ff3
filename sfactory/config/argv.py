"""Room: the command line as typed. In: argv. Out: flag values and a line for everything that is wrong with it.

The forms are those of contracts.md: ``--name=value`` or ``--name value``, dashes or underscores, lists
separated by spaces. Nothing is abbreviated and nothing is positional, so every token has one meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sfactory.config.ancestor_flags import ancestor_hint
from sfactory.config.flags import Flag, assigned, did_you_mean, parse_text, shown

CONFIG_FLAG = "config"


@dataclass
class CommandLine:
    """What was typed. ``broken`` names the flags whose value could not be read."""

    values: dict[str, object] = field(default_factory=dict)
    config_path: str | None = None
    help: bool = False
    problems: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


def scan(argv: Sequence[str], flags: Mapping[str, Flag], takes_config: bool = True) -> CommandLine:
    """Read all of ``argv`` by ``flags`` (and --config, if taken); problems are collected, never raised."""
    line = CommandLine()
    seen: dict[str, str] = {}
    others = [CONFIG_FLAG] if takes_config else []
    position = 0
    while position < len(argv):
        token = argv[position]
        position += 1
        if token in ("--help", "-h"):
            line.help = True
            continue
        if not token.startswith("--") or token.lstrip("-")[:1] in ("", "="):
            line.problems.append(_stray(token, argv[position - 2] if position > 1 else "", flags))
            continue
        typed, equals, text = token[2:].partition("=")
        name = typed.replace("-", "_")
        words = [text] if equals else _following(argv, position, _most_words(name, flags))
        position += 0 if equals else len(words)
        if name not in flags and name not in others:
            line.problems.append(_unknown(typed, name, [*flags, *others]))
        elif name in seen:
            twice = f"{seen[name]}, then {shown(' '.join(words))}"
            line.problems.append(f"--{name}: given more than once ({twice}); give it once")
            line.broken.add(name)
        else:
            seen[name] = shown(" ".join(words))
            _take(line, flags.get(name), words)
    return line


def _most_words(name: str, flags: Mapping[str, Flag]) -> int | None:
    """How many of the following tokens can belong to a flag; None is all of them."""
    if name == CONFIG_FLAG or (name in flags and not flags[name].is_list):
        return 1
    return None


def _following(argv: Sequence[str], position: int, most: int | None) -> list[str]:
    words: list[str] = []
    for token in argv[position:]:
        # A single dash begins a negative number, never a flag.
        if token.startswith("--") or len(words) == most:
            break
        words.append(token)
    return words


def _take(line: CommandLine, flag: Flag | None, words: list[str]) -> None:
    """Store the value of one flag; ``flag`` is None for --config."""
    if flag is None:
        if not words or not words[0]:
            line.problems.append(f"--{CONFIG_FLAG}: needs the path of a file, for example --{CONFIG_FLAG}=flags.yaml")
        else:
            line.config_path = words[0]
        return
    text = " ".join(words)
    if not words:
        line.problems.append(f"--{flag.name}: needs a value{_value_advice(flag)}")
        line.broken.add(flag.name)
        return
    try:
        line.values[flag.name] = parse_text(flag, text)
    except ValueError as error:
        line.problems.append(f"{assigned(flag.name, text)}: {error}")
        line.broken.add(flag.name)


def _value_advice(flag: Flag) -> str:
    if flag.type is bool:
        return f": --{flag.name}=True or --{flag.name}=False"
    if flag.is_list:
        return f": --{flag.name} {flag.example()}, or --{flag.name}= for an empty list"
    if flag.choices:
        return f", one of {', '.join(flag.choices)}"
    return f", for example --{flag.name}={flag.example()}" if flag.example() else f": --{flag.name}=..."


def _unknown(typed: str, name: str, known: Sequence[str]) -> str:
    hint = ancestor_hint(name, known, prefix="--")
    if hint:
        return f"--{shown(typed)}: {hint}"
    positive = name.removeprefix("no_")
    if positive != name and positive in known:
        return f"--{shown(typed)}: unknown flag; switch it off with --{positive}=False"
    near = did_you_mean(name, [*known, "help"], prefix="--")
    return f"--{shown(typed)}: unknown flag{near or '; --help lists all flags'}"


def _stray(token: str, before: str, flags: Mapping[str, Flag]) -> str:
    bare, equals, _ = token.lstrip("-").partition("=")
    name = bare.replace("-", "_")
    if name in flags and (equals or token.startswith("-")):
        return f"{shown(token)}: flags begin with two dashes: --{shown(token.lstrip('-'))}"
    owner, owner_equals, value = before.removeprefix("--").partition("=")
    owner = owner.replace("-", "_")
    if owner_equals and owner in flags and flags[owner].is_list:
        return f"{shown(token)!r}: unexpected; write a list as --{owner} {shown(f'{value} {token}')}"
    return f"{shown(token)!r}: unexpected; every setting is given as --name=value"
