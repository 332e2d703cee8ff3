"""Learning by torch.compile gives the weights that learning without it gives."""

from __future__ import annotations

import logging

import pytest
import torch

from sfactory.learner.trainer import Trainer
from tests.support.gpu import made_up_batch
from tests.support.long import LONG
from tests.support.updates import CASES, Case, learner_of, weights_of

pytestmark = LONG  # 10 to 30 s for each case


def learned(case: Case, torch_compile: bool) -> Trainer:
    """A trainer after three datasets, with another weight of the exploration loss each time."""
    learner = {**case.learner, "torch_compile": torch_compile}
    trainer = learner_of(case._replace(learner=learner), torch.device("cpu"))
    for seed in range(3):
        trainer.coefficients.exploration = 0.003 * seed
        spec, size = trainer.model.spec, trainer.model.state_size
        trainer.train(made_up_batch(spec, size, case.agents, case.steps, case.rows, seed))
    return trainer


def works(case: Case) -> bool:
    """Whether a run may have the setting and compiled losses."""
    recurrent = case.model.get("use_rnn") and case.model.get("rnn_type") != "mingru"
    return not (case.draws or recurrent or case.learner.get("microbatch_size"))


WHOLE = [case for case in CASES if works(case)]


@pytest.mark.parametrize("case", WHOLE, ids=[case.name for case in WHOLE])
def test_weights_are_those_without_it(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    plain, compiled = learned(case, False), learned(case, True)

    assert "--torch_compile" not in caplog.text
    rough = 1e-5 if case.dtype is torch.float32 else 1e-2
    torch.testing.assert_close(weights_of(compiled), weights_of(plain), rtol=rough, atol=rough)
    assert compiled.statistics()["entropy"] == pytest.approx(plain.statistics()["entropy"], rel=1e-2)


def test_where_compiling_fails_it_is_said_once_and_learning_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    torch.compiler.reset()
    plain, compiled = learned(CASES[0], False), learned(CASES[0], True)

    assert caplog.text.count("--torch_compile: the loss is computed without it, since it failed") == 1
    assert torch.equal(weights_of(compiled), weights_of(plain))
