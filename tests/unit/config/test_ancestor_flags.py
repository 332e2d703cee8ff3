"""Flags of RLlib and Sample Factory 1 are refused with the name that they have here."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.write_flags import RENAMED, entries
from sfactory.config.argv import ANCESTOR_FLAGS
from sfactory.config.enjoy import read_enjoy_line
from sfactory.config.flags import all_flags
from sfactory.errors import ConfigError
from tests.support.command_line import PLAIN_ENV, refused


def test_the_names_lead_to_our_flags_and_to_those_that_the_documents_give() -> None:
    flags = all_flags()
    renamed = {entry.name: tuple(entry.ours) for entry in entries() if entry.relation == RENAMED}

    assert ANCESTOR_FLAGS.keys() & flags.keys() == set()
    assert [name for name, (_, ours) in ANCESTOR_FLAGS.items() if not ours or set(ours) - flags.keys()] == []
    assert {name: ANCESTOR_FLAGS[name][1] for name in renamed if name not in flags} == {
        name: ours for name, ours in renamed.items() if name not in flags
    }


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--num-sgd-iter=3", "--num-sgd-iter: is RLlib's name; here it is --num_epochs"),
        ("--_lr_vf=1", "--_lr_vf: is RLlib's name; here it is --value_lr"),
        (
            "--hidden_size=64",
            "--hidden_size: is Sample Factory 1's name; here it is --rnn_size or --encoder_mlp_layers or "
            "--encoder_conv_mlp_layers",
        ),
    ],
)
def test_a_command_line_with_a_foreign_name_is_refused_with_ours(typed: str, expected: str) -> None:
    assert refused(PLAIN_ENV, typed) == [expected]


def test_a_config_file_with_foreign_names_is_refused_with_ours(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("num_sgd_iter: 3\nvf-clip-param: 1.0\nlr_schedule: constant\n")

    assert refused(PLAIN_ENV, f"--config={file}") == [
        f"--config={file}: key 'num_sgd_iter' is RLlib's name; here it is num_epochs",
        f"--config={file}: key 'vf_clip_param' is RLlib's name; here it is ppo_clip_value",
    ]


def test_a_command_that_lacks_the_flag_does_not_advise_it() -> None:
    with pytest.raises(ConfigError) as caught:
        read_enjoy_line(["--num_sgd_iter=3"])

    assert caught.value.problems == ["--num_sgd_iter: unknown flag; --help lists all flags"]
