"""Samples actions with the newest published weights, in policy workers and in actors with local inference."""

from __future__ import annotations

import torch
from torch import Tensor

from sfactory.clock import BLOCK_S
from sfactory.config.schema import ModelConfig
from sfactory.inference.cuda_graphs import Act, FixedShapes, padded_sizes
from sfactory.model.actor_critic import Acted, ActorCritic
from sfactory.model.flat_state import FlatState
from sfactory.model.precision import ActingTwin, allow_tf32, attributes_at_hand, compute_dtype, torch_dtype
from sfactory.model.torch_state import OwnTorchState
from sfactory.shared.control import Control
from sfactory.shared.trajectories import Slot
from sfactory.shared.weights import SharedWeights
from sfactory.spec import EnvSpec
from sfactory.system.cuda_graphs import GraphRecorder, Recorder


class ActingPolicy:
    """A model that follows the weights in SharedWeights, or those that ``adopt`` is given.

    version: policy version of its weights. paths: of the observations that it reads. recorder: of its passes;
    None where they are computed kernel by kernel.
    """

    def __init__(
        self,
        spec: EnvSpec,
        config: ModelConfig,
        weights: SharedWeights | None,
        device: torch.device,
        recorder: Recorder | None = None,
    ) -> None:
        """``weights``: None where a learner in this process gives them to ``adopt``, without host memory.

        ``recorder``: that of another policy, whose results are read before this one acts: they share memory.
        """
        self.device, self._obs = device, spec.obs
        self.paths = tuple(path for path, _ in spec.obs)
        dtype = compute_dtype(config.amp, device)
        allow_tf32(config.amp, device)
        self._own = OwnTorchState()
        plain = dtype is torch.float32 and not config.use_spectral_norm  # acts with the weights as they are
        with self._own:
            self._model = ActorCritic(spec, config, dtype).to(device).eval()
            self._flat = FlatState(self._model)
            self._twin = None if plain else ActingTwin(self._model)
        if self._twin is not None:
            self._model = self._twin.model
        attributes_at_hand(self._model)
        self._inference = torch.inference_mode()  # created once: creating it takes longer than entering it
        self.recorder = recorder
        self._act: Act = self._model.act
        if config.cuda_graphs and device.type == "cuda":
            self.recorder = recorder or GraphRecorder(device)
            self._act = FixedShapes(self._model.act, self.recorder).act
        self._weights = weights
        on_cpu = device.type == "cpu"
        if on_cpu:  # an env may live in this process
            self.draw_privately()
        # On the CPU, published bytes are copied straight into the model; on a GPU, through pinned memory.
        self._host: Tensor | None = None
        if weights is not None:
            self._host = self._flat.block if on_cpu else torch.empty_like(self._flat.block, device="cpu").pin_memory()
        self._adopted: torch.cuda.Event | None = None  # the end of the copy from there
        if device.type == "cuda":
            self._adopted = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._publication = 0
        self.version = -1

    def wait_for_weights(self, control: Control) -> bool:
        """Wait for the learner's first publication; False if a stop was ordered first (main limits the wait)."""
        assert self._weights is not None, "weights are given to adopt()"
        while not self._weights.published.wait(BLOCK_S):
            if control.stopping:
                return False
        self.refresh()
        return True

    def refresh(self) -> None:
        """Load newer weights if there are any; never call this during a forward pass."""
        assert self._weights is not None, "weights are given to adopt()"
        assert self._host is not None
        if self._weights.publications == self._publication:
            return
        if self._adopted is not None:
            self._adopted.synchronize()  # the last copy has long ended: a pass, with its results, came after it
        self._publication, self.version = self._weights.read_into(self._host.numpy())
        if self._host is not self._flat.block:
            self._flat.adopt(self._host)
        if self._adopted is not None:
            self._adopted.record(torch.cuda.current_stream(self.device))
        self._follow()

    def adopt(self, weights: Tensor, version: int) -> None:
        """Act with ``weights``, the block of a FlatState of such a model, as policy ``version``."""
        self._flat.adopt(weights)
        self.version = version
        self._follow()

    def _follow(self) -> None:
        """The weights have changed: so do those in another precision, if it acts with them."""
        if self._twin is not None:
            with self._own:
                self._twin.refresh()

    def prepare(self, rows: int, requests: int) -> None:
        """With CUDA graphs, record the passes for 1 to ``requests`` times ``rows`` rows, which would else be recorded
        when the first batch of their size waits for its actions."""
        for size in padded_sizes(rows, requests) if self.recorder is not None else ():
            obs = {
                path: torch.zeros((size, *leaf.shape), dtype=torch_dtype(leaf.dtype), device=self.device)
                for path, leaf in self._obs
            }
            self.act(obs, self.fresh_state(size))

    def draw_privately(self) -> None:
        """As ActorCritic.draw_privately."""
        self._model.draw_privately()

    @property
    def state_size(self) -> int:
        """S: size of the recurrent state of one row; 0 without memory."""
        return self._model.state_size

    def fresh_state(self, rows: int) -> Tensor:
        """[rows, S]: the state of rows that start an episode."""
        return self._model.fresh_state(rows)

    def act(self, obs: dict[str, Tensor], state: Tensor, deterministic: bool = False) -> Acted:
        """Sample actions, or take the mode, for obs {key: [B, ...]} and state [B, S] on this policy's device.

        With CUDA graphs, results are valid until the next call.
        """
        with self._own, self._inference:
            if deterministic:
                return self._model.act(obs, state, deterministic=True)  # not captured in a graph
            return self._act(obs, state)


class ObsRows:
    """Views of the observations of each step, created once per slot instead of once per step."""

    def __init__(self) -> None:
        self._of: dict[int, list[dict[str, Tensor]]] = {}

    def row(self, slot: Slot, t: int) -> dict[str, Tensor]:
        """{key: [N, ...]} - the observations of step ``t`` of ``slot``."""
        rows = self._of.get(slot.index)
        if rows is None:
            steps = {key: torch.from_numpy(block).unbind(0) for key, block in slot.obs.items()}
            rows = [dict(zip(steps, row, strict=True)) for row in zip(*steps.values(), strict=True)]
            self._of[slot.index] = rows
        return rows[t]
