"""docs/flags.md and the data that it is written from."""

from __future__ import annotations

from collections import Counter

import pytest

from scripts.write_flags import (
    DROPPED,
    PLANNED,
    RELATIONS,
    RENAMED,
    REPLACED,
    SAME,
    TARGET,
    WORDS,
    Ancestor,
    Entry,
    Genealogy,
    ancestors,
    default_text,
    document,
    entries,
    is_same_default,
    our_flags,
)
from sfactory.config.commands import export_flags, plot_flags
from sfactory.config.enjoy import enjoy_flags
from sfactory.config.flags import all_flags
from sfactory.config.launcher import launcher_flags

# How many flags each ancestor has.
COUNTS = {
    "sf_v2": 134,
    "sf_v1": 106,
    "sf_1_0": 1,
    "appo": 51,
    "appo_statistics": 5,
    "sf_dummy_sampler": 7,
    "sf_doom": 9,
    "sf_dmlab": 11,
    "sf_envpool": 3,
    "sf_isaacgym": 5,
    "sf_brax": 4,
    "sf_nethack": 26,
    "sf_launcher": 17,
    "rllib_impala": 33,
    "rllib_impala_code": 12,
    "rllib_appo": 11,
    "microbatch": 2,
    "microbatch_statistics": 7,
    "learner_thread": 11,
    "learner_thread_statistics": 5,
}


def names_of_ours() -> set[str]:
    return {*our_flags(), *WORDS}


def of_relation(relation: str) -> list[Entry]:
    return [entry for entry in entries() if entry.relation == relation]


def test_the_document_is_what_the_script_writes() -> None:
    assert TARGET.read_text(encoding="utf-8") == document(), "out of date: run make flags"


def test_every_flag_of_ours_has_a_row_of_its_own() -> None:
    ours = document().partition("## The map from the ancestors")[0]
    train, others = ours.split("## The flags of sfactory.enjoy")
    enjoy, others = others.split("## The flags of sfactory.export")
    export, others = others.split("## The flags of sfactory.launcher")
    launcher, plot = others.split("## The flags of sfactory.plot")

    assert [name for name in all_flags() if train.count(f"\n| `{name}` |") != 1] == []
    assert [name for name in enjoy_flags() if enjoy.count(f"\n| `{name}` |") != 1] == []
    assert [name for name in export_flags() if export.count(f"\n| `{name}` |") != 1] == []
    assert [name for name in launcher_flags() if launcher.count(f"\n| `{name}` |") != 1] == []
    assert [name for name in plot_flags() if plot.count(f"\n| `{name}` |") != 1] == []


def test_the_default_that_depends_on_the_machine_is_named_in_words() -> None:
    assert default_text(all_flags()["num_workers"]) == "number of cores"


def test_the_lists_of_the_ancestors_are_whole() -> None:
    assert {known.source: len(known.flags) for known in ancestors()} == COUNTS


def test_every_flag_of_every_ancestor_is_mapped_exactly_once_and_nothing_else_is() -> None:
    listed = Counter((known.source, name) for known in ancestors() for name in known.flags)
    mapped = Counter((source, entry.name) for entry in entries() for source in entry.sources)

    assert listed - mapped == Counter(), "listed, not mapped"
    assert mapped - listed == Counter(), "mapped twice, or mapped and not listed"


def test_every_relation_is_one_of_the_known() -> None:
    assert {entry.relation for entry in entries()} == set(RELATIONS)


def test_a_flag_that_is_the_same_has_the_same_name_here() -> None:
    assert [entry.name for entry in of_relation(SAME) if entry.name not in names_of_ours()] == []


def test_a_flag_that_is_the_same_with_another_default_says_something_about_it() -> None:
    defaults = {known.source: known.flags for known in ancestors()}

    silent = [
        (source, entry.name)
        for entry in of_relation(SAME)
        for source in entry.sources
        if entry.name in our_flags()
        and not is_same_default(our_flags()[entry.name], defaults[source][entry.name])
        and not entry.note
    ]

    assert silent == []


def test_a_renamed_flag_leads_to_one_flag_of_ours() -> None:
    assert [entry.name for entry in of_relation(RENAMED) if len(entry.ours) != 1] == []


def test_a_flag_that_is_replaced_leads_to_flags_of_ours_or_says_what_does_it() -> None:
    assert [entry.name for entry in of_relation(REPLACED) if not entry.ours and not entry.by] == []


def test_every_flag_that_the_map_leads_to_exists() -> None:
    assert [(entry.name, name) for entry in entries() for name in entry.ours if name not in names_of_ours()] == []


def test_nothing_is_planned_or_left_out_that_is_there() -> None:
    absent = [*of_relation(PLANNED), *of_relation(DROPPED)]

    assert [entry.name for entry in absent if entry.name in names_of_ours()] == []


def test_what_is_the_same_planned_or_not_applicable_leads_to_no_other_flag() -> None:
    others = [*of_relation(SAME), *of_relation(PLANNED), *of_relation(DROPPED)]

    assert [entry.name for entry in others if entry.ours or entry.by] == []


def test_what_is_planned_or_not_applicable_says_why() -> None:
    assert [entry.name for entry in [*of_relation(PLANNED), *of_relation(DROPPED)] if not entry.note] == []


@pytest.mark.parametrize(
    ("name", "default", "same"),
    [
        ("adam_eps", "1e-6", True),
        ("encoder_mlp_layers", "512 512", True),
        ("decoder_mlp_layers", "empty", True),
        ("train_for_env_steps", "1e10", True),
        ("num_workers", "number of cores", True),
        ("num_workers", "2", False),
        ("device", "gpu", False),
        ("env_frameskip", "None", False),
    ],
)
def test_defaults_are_compared_by_what_they_mean(name: str, default: str, same: bool) -> None:
    assert is_same_default(all_flags()[name], default) == same


def test_the_origin_of_a_flag_names_both_versions_where_they_differ() -> None:
    versions = [
        Ancestor("sf_v1", "v1", "", {"gamma": "0.9", "ppo_epochs": "1"}),
        Ancestor("sf_v2", "v2", "", {"gamma": "0.99", "num_epochs": "1"}),
        Ancestor("appo", "appo", "", {"rollout": "32"}),
        Ancestor("rllib_impala", "RLlib", "", {}),
        Ancestor("rllib_appo", "RLlib", "", {}),
    ]
    mapped = [
        Entry("gamma", ["sf_v1", "sf_v2"], SAME),
        Entry("num_epochs", ["sf_v2"], SAME),
        Entry("ppo_epochs", ["sf_v1"], RENAMED, ["num_epochs"]),
        Entry("rollout", ["appo"], SAME),
    ]

    genealogy = Genealogy(versions, mapped)

    assert genealogy.origin(all_flags()["gamma"]) == "v1: same, default `0.9`; v2: same"
    assert genealogy.origin(all_flags()["num_epochs"]) == "v1: renamed from `ppo_epochs`; v2: same"
    assert genealogy.origin(all_flags()["rollout"]) == "early v1: same"
    assert genealogy.origin(all_flags()["seed"]) == "new"
