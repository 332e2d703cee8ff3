"""Batches are padded to a few sizes, and the results equal those of an unpadded pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sfactory.inference.cuda_graphs import FixedShapes, GraphPass, padded_rows, padded_sizes
from sfactory.model.actor_critic import Acted
from sfactory.system.cuda_graphs import GraphRecorder
from tests.support.parts import model_of

A_WHILE = 200_000_000  # clock cycles of a GPU


class PlainRecorder:
    """Has passes computed again each time, without a graph. tried: rows of those that it was to record.

    most: it fails for more rows.
    """

    def __init__(self, most: int = 1024) -> None:
        self.most, self.tried = most, list[int]()

    def warm_up(self, work: Callable[[], Any]) -> Any:
        return work()

    def record(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.tried.append(len(work().value))
        if self.tried[-1] > self.most:
            raise RuntimeError("operation not permitted when stream is capturing\nCompile with ...")
        return work

    def use_other_memory(self) -> None: ...


def batch(rows: int, seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"obs": torch.randn(rows, 3, generator=generator)}, torch.randn(rows, 6, generator=generator)


def test_padded_sizes_are_few_and_at_most_half_as_large_again() -> None:
    assert [padded_rows(rows) for rows in (1, 2, 3, 4, 5, 6, 7, 64, 65, 97)] == [1, 2, 3, 4, 6, 6, 8, 64, 96, 128]
    assert all(rows <= padded_rows(rows) <= rows * 3 / 2 for rows in range(1, 1025))
    assert len({padded_rows(rows) for rows in range(1, 1025)}) == 20


def test_sizes_of_all_batches_of_some_splits_are_known_in_advance() -> None:
    assert padded_sizes(16, 28) == [512, 384, 256, 192, 128, 96, 64, 48, 32, 16]
    assert set(padded_sizes(5, 7)) == {padded_rows(5 * splits) for splits in range(1, 8)}
    assert padded_sizes(5, 0) == []


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_results_equal_those_without_padding(rows: int) -> None:
    model = model_of(use_rnn=True)
    obs, state = batch(rows)

    with torch.inference_mode():
        padded = FixedShapes(model.act, PlainRecorder()).act(obs, state)
        expected = model(obs, state)

    assert padded.actions["action"].shape == padded.log_prob.shape == (rows,)
    torch.testing.assert_close(padded.value, expected.value)
    torch.testing.assert_close(padded.state, expected.state)
    log_prob = model.distribution(expected.dist_params).log_prob(padded.actions)
    torch.testing.assert_close(padded.log_prob, log_prob)


def test_batches_of_one_size_share_a_pass_and_do_not_affect_each_other() -> None:
    model, recorder = model_of(use_rnn=True), PlainRecorder()
    shapes = FixedShapes(model.act, recorder)
    with torch.inference_mode():
        for rows, seed in ((8, 1), (7, 2), (3, 3), (8, 4)):
            obs, state = batch(rows, seed)
            torch.testing.assert_close(shapes.act(obs, state).value, model(obs, state).value)

    assert recorder.tried == [8, 3]


def test_a_pass_that_cannot_be_recorded_leaves_all_passes_to_single_kernels(caplog: pytest.LogCaptureFixture) -> None:
    model, recorder = model_of(use_rnn=True), PlainRecorder(most=2)
    shapes = FixedShapes(model.act, recorder)
    with torch.inference_mode():
        for rows in (2, 5, 2, 7):
            obs, state = batch(rows)
            torch.testing.assert_close(shapes.act(obs, state).value, model(obs, state).value)

    assert recorder.tried == [2, 6]
    assert caplog.text.count("since recording failed: operation not permitted when stream is capturing") == 1


def test_passes_are_captured_on_one_stream_of_their_device_into_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[object] = []
    captures: list[dict[str, object]] = []

    class Stream:
        def __init__(self, device: object) -> None:
            streams.append(device)

        def wait_stream(self, other: object) -> None: ...

    def capture(graph: object, **how: object) -> contextlib.nullcontext[None]:
        captures.append(how)
        return contextlib.nullcontext()

    current = Stream("current")
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "graph", capture)
    recorder, model = GraphRecorder(torch.device("cuda:1")), model_of(use_rnn=True)
    with torch.inference_mode():
        for rows in (1, 2, 8):
            GraphPass(model.act, *batch(rows), recorder)

    assert streams == ["current", torch.device("cuda:1")]
    assert len(captures) == 3
    assert all(capture == captures[0] for capture in captures)
    assert captures[0]["pool"] == (0, 1)
    assert isinstance(captures[0]["stream"], Stream)


@pytest.mark.gpu
def test_a_replayed_pass_uses_the_current_weights_and_draws_new_actions() -> None:
    device = torch.device("cuda")
    model = model_of(use_rnn=True).to(device)
    shapes = FixedShapes(model.act, GraphRecorder(device))
    obs, state = ({"obs": torch.randn(512, 3, device=device)}, torch.zeros(512, 6, device=device))

    def play() -> Acted:
        acted = shapes.act(obs, state)
        return Acted({"action": acted.actions["action"].clone()}, *(tensor.clone() for tensor in acted[1:]))

    with torch.inference_mode():
        first, second = play(), play()
        torch.testing.assert_close(first.value, model(obs, state).value)
        assert torch.equal(first.value, second.value)
        assert not torch.equal(first.actions["action"], second.actions["action"])
        model.value_head.linear.bias.add_(1.0)
        torch.testing.assert_close(play().value, model(obs, state).value)


@pytest.mark.gpu
def test_results_of_a_gpu_are_complete_once_they_are_on_the_host() -> None:
    model = model_of(use_rnn=True).to("cuda")
    obs, state = {"obs": torch.randn(512, 3, device="cuda")}, torch.zeros(512, 6, device="cuda")

    with torch.inference_mode():
        acted = model.act(obs, state)
        torch.cuda._sleep(A_WHILE)  # a read before the copies are complete would differ
        on_host = acted.on_host()
        found = [tensor.clone() for tensor in (on_host.actions["action"], *on_host[1:])]
        torch.cuda.synchronize()

    assert {tensor.device.type for tensor in (*on_host.actions.values(), *on_host[1:])} == {"cpu"}
    for copied, original in zip(found, (acted.actions["action"], *acted[1:]), strict=True):
        assert torch.equal(copied, original.cpu())
