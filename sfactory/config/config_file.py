"""Reads the YAML, TOML or JSON file of ``--config``."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_type_hints

import yaml

from sfactory.atomic import read_bytes
from sfactory.config.ancestors import ancestor_hint
from sfactory.config.argv import CONFIG
from sfactory.config.flags import Reading, all_flags, assigned, did_you_mean, shown, strict_json
from sfactory.config.saved_config import DRAWN, PRINTED
from sfactory.config.schema import Config

_MOST_DEPTH = 50
_FORMS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    ".json": ("JSON", strict_json),
    ".toml": ("TOML", tomllib.loads),
}


@dataclass
class ConfigFile(Reading):
    """The content of the file. ``of_run``: it is the config.json of a run, which holds every flag, chosen or not.

    printed: by flag, its source at the time of ``--print_config`` if the file was printed so.
    """

    of_run: bool = False
    printed: Mapping[str, str] = field(default_factory=dict)


def read_config_file(path: str) -> ConfigFile:
    """Read a mapping of flag names, with or without their sections around them, or a run's config.json.

    A seed that the run has drawn is left out, so that each run with its settings draws its own. Problems are collected,
    not raised.
    """
    where, missed = assigned(CONFIG.name, path), {"env"}  # of a file that cannot be read: it may have named one
    form, parse = _FORMS.get(Path(path).suffix, ("YAML", _strict_yaml))
    try:
        data = parse(read_bytes(path).decode())
    except OSError as error:
        reason = f"{error.strerror or error}; the path counts from {Path.cwd()}"
        return ConfigFile(problems=[f"{where} cannot be read: {reason}"], broken=missed)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        return ConfigFile(problems=[f"{where} is not valid {form}: {' '.join(str(error).split())}"], broken=missed)
    if data is None:
        return ConfigFile()
    if not isinstance(data, Mapping):
        return ConfigFile(
            problems=[f"{where}: must be a mapping of flag names, with lines like gamma: 0.99"], broken=missed
        )
    if "format_version" in data and isinstance(data.get("config"), Mapping):
        found = data.get("sources")
        sources = {str(name): str(source) for name, source in found.items()} if isinstance(found, Mapping) else {}
        values = {name: value for name, value in data["config"].items() if sources.get(str(name)) != DRAWN}
        printed = sources if data.get(PRINTED) is True else {}
        return _read_mapping(where, values, ConfigFile(of_run=True, printed=printed))
    return _read_mapping(where, data, ConfigFile())


def _strict_yaml(text: str) -> object:
    """YAML data; raises ValueError where a key stands twice in one mapping, which YAML readers let pass."""
    _refuse_needless_forms(text)
    nodes = [yaml.compose(text, Loader=yaml.SafeLoader)]
    while nodes:
        node = nodes.pop()
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        for key, count in Counter(str(key.value) for key, _ in pairs).items():
            if count > 1:
                raise ValueError(f"key {key!r} stands {count} times")
        nodes += [value for _, value in pairs] or (node.value if isinstance(node, yaml.SequenceNode) else [])
    data: object = yaml.safe_load(text)
    repr(data)  # raises for a hexadecimal number so long that no error could show it
    return data


def _refuse_needless_forms(text: str) -> None:
    """Raise ValueError for what no flag needs and the reader cannot bear: aliases (a few lines make values of any
    size), tags (which crash it) and deep nesting (which takes minutes)."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"alias *{event.anchor}: write the value where it is wanted")
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
            raise ValueError(f"tag {event.tag}: values have none; put text in quotes")
        if depth > _MOST_DEPTH:
            raise ValueError(f"more than {_MOST_DEPTH} brackets deep")


def _read_mapping(where: str, data: Mapping[object, object], result: ConfigFile, section: str = "") -> ConfigFile:
    """Add what ``data`` holds to ``result``. section: the one that it stands in; "" at the top level."""
    flags, sections = all_flags(), () if section else tuple(get_type_hints(Config))
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name in sections and isinstance(value, Mapping | None):  # a flag of the same name has other values
            _read_mapping(where, value or {}, result, name)
        elif name in sections and name not in flags:
            result.problems.append(f"{where}: key {name!r} is a section; write its flags below it, indented")
        elif section and name in flags and flags[name].section != section:
            result.problems.append(f"{where}: key {name!r} is in section {flags[name].section!r}, not in {section!r}")
        elif name not in flags:
            hint = ancestor_hint(name, flags)
            advice = (
                f"key {name!r} {hint}"
                if hint
                else f"unknown key {shown(str(key))!r}{did_you_mean(name, [*flags, *sections])}"
            )
            result.problems.append(f"{where}: {advice}")
        elif name in result.values or name in result.broken:
            result.problems.append(f"{where}: key {name!r} stands twice, in two sections or forms")
        else:
            result.take(flags[name], value, f" (in {where})")
    return result
