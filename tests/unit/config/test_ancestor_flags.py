"""Who types a flag of an ancestor is told what it is called here."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.write_flags import RENAMED, entries
from sfactory.config.argv import ANCESTOR_FLAGS, ancestor_hint
from sfactory.config.enjoy import enjoy_flags, read_enjoy_line
from sfactory.config.flags import all_flags
from sfactory.config.resolve import read_command_line
from sfactory.errors import ConfigError


def refused(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_command_line(["--env=Taxi-v4", *argv], prog="sfactory.train")
    return caught.value.problems


def test_no_name_of_ours_is_taken_for_an_ancestors() -> None:
    assert ANCESTOR_FLAGS.keys() & all_flags().keys() == set()


def test_every_name_leads_to_flags_that_exist() -> None:
    assert [name for name, (_, ours) in ANCESTOR_FLAGS.items() if not ours or set(ours) - all_flags().keys()] == []


def test_what_the_map_of_the_documents_calls_renamed_leads_where_it_says() -> None:
    renamed = {entry.name: tuple(entry.ours) for entry in entries() if entry.relation == RENAMED}

    wrong = {
        name: ours
        for name, ours in renamed.items()
        if name not in all_flags() and ANCESTOR_FLAGS.get(name, ("", ()))[1] != ours
    }

    assert wrong == {}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--num_sgd_iter=3", "--num_sgd_iter: is RLlib's name; here it is --num_epochs"),
        ("--num-sgd-iter=3", "--num-sgd-iter: is RLlib's name; here it is --num_epochs"),
        ("--lambda=0.9", "--lambda: is RLlib's name; here it is --gae_lambda"),
        ("--_lr_vf=1", "--_lr_vf: is RLlib's name; here it is --value_lr"),
        ("--ppo_epochs=2", "--ppo_epochs: is Sample Factory 1's name; here it is --num_epochs"),
        (
            "--hidden_size=64",
            "--hidden_size: is Sample Factory 1's name; here it is --rnn_size or --encoder_mlp_layers or "
            "--encoder_conv_mlp_layers",
        ),
    ],
)
def test_a_command_line_with_an_ancestors_name_is_told_ours(typed: str, expected: str) -> None:
    assert refused(typed) == [expected]


def test_a_config_file_with_ancestors_names_is_told_ours(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("num_sgd_iter: 3\nvf-clip-param: 1.0\nlr_schedule: constant\n")

    assert refused(f"--config={file}") == [
        f"--config={file}: key 'num_sgd_iter' is RLlib's name; here it is num_epochs",
        f"--config={file}: key 'vf_clip_param' is RLlib's name; here it is ppo_clip_value",
    ]


def test_a_command_that_lacks_the_flag_does_not_advise_it() -> None:
    with pytest.raises(ConfigError) as caught:
        read_enjoy_line(["--num_sgd_iter=3"], prog="sfactory.enjoy")

    assert caught.value.problems == ["--num_sgd_iter: unknown flag; --help lists all flags"]
    assert ancestor_hint("num_sgd_iter", enjoy_flags()) == ""
