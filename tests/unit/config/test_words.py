"""Python values become the words of a command line that mean the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sfactory.config.argv import scan, words_of
from sfactory.config.flags import all_flags
from sfactory.errors import ConfigError


def test_values_come_back_from_the_words_as_they_were() -> None:
    values = {
        "env": "module:make",
        "env_kwargs": {"size": 9, "name": "a b"},
        "encoder_mlp_layers": [64, 32],
        "decoder_mlp_layers": (),
        "use_rnn": True,
        "seed": None,
        "gamma": 0.5,
        "learning_rate": np.float64(1e-4),
        "num_epochs": np.int64(2),
        "train_dir": Path("/some where"),
    }

    line = scan(words_of(values), all_flags())

    assert line.problems == []
    assert line.values == {
        **values,
        "encoder_mlp_layers": (64, 32),
        "learning_rate": 1e-4,
        "num_epochs": 2,
        "train_dir": "/some where",
    }


def test_dashes_in_names_are_as_good_as_underscores() -> None:
    assert scan(words_of({"num-epochs": 2}), all_flags()).values == {"num_epochs": 2}


def test_what_no_flag_can_be_is_told_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        words_of({"env": test_dashes_in_names_are_as_good_as_underscores, "seed": {1}, "--gamma": 1, 3: 4})  # type: ignore[dict-item]

    assert caught.value.problems == [
        "--env: a function cannot be given; give a bool, a number, text, a list, a mapping or None",
        "--seed: a set cannot be given; give a bool, a number, text, a list, a mapping or None",
        "'--gamma': must be the name of a flag, without its dashes",
        "3: must be the name of a flag, without its dashes",
    ]
