"""The optimizers of ``--optimizer``. Whether a step is taken is decided on the device, by a tensor.

NOTE [Refused step]: a step that is not taken changes nothing: neither weights, nor moments, nor the step count that
moments are corrected by. Torch's fused optimizers do this themselves (``found_inf``, made for gradient scaling). For
the others everything that a step changes is copied before it, and put back if the step was refused.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from sfactory.config.schema import OptimConfig

_Torchs = torch.optim.Optimizer


class _Plain(_Torchs):
    """An optimizer of torch without the wrappers that have torch.compile leave it alone.

    They would import torch's compiler, which takes as long as importing torch; and no optimizer is compiled here.
    """

    add_param_group: Any = inspect.unwrap(_Torchs.add_param_group)
    load_state_dict: Any = inspect.unwrap(_Torchs.load_state_dict)
    state_dict: Any = inspect.unwrap(_Torchs.state_dict)


class Adam(_Plain, torch.optim.Adam):
    """Torch's."""

    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class AdamW(_Plain, torch.optim.AdamW):
    """Torch's."""

    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class RMSprop(_Plain):
    """Divides gradients by the root of a running mean of their squares (Tieleman and Hinton 2012, lecture 6.5).

    s <- alpha s + (1 - alpha) g^2;  m <- momentum m + g / d;  p <- p - lr m.
    As in torch: s = 0 at the start, d = sqrt(s) + eps. As in TensorFlow: s = 1 at the start, d = sqrt(s + eps).
    """

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        """settings: lr, alpha, momentum, eps and tf_style."""
        super().__init__(parameters, settings)

    def init_group(self, group: dict[str, Any]) -> None:
        """Create missing moments of the group's parameters."""
        for parameter in group["params"]:
            moments = self.state[parameter]
            if "square_avg" not in moments:
                moments["square_avg"] = torch.full_like(parameter, 1.0 if group["tf_style"] else 0.0)
            if group["momentum"] and "momentum_buffer" not in moments:
                moments["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step along the gradients; ``closure`` is ignored."""
        for group in self.param_groups:
            self.init_group(group)
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._step_group(group, parameters)

    def _step_group(self, group: dict[str, Any], parameters: list[Any]) -> None:
        gradients = [parameter.grad for parameter in parameters]
        squares = [self.state[parameter]["square_avg"] for parameter in parameters]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1.0 - group["alpha"])
        if group["tf_style"]:
            divisors = torch._foreach_add(squares, group["eps"])
            torch._foreach_sqrt_(divisors)
        else:
            divisors = torch._foreach_sqrt(squares)
            torch._foreach_add_(divisors, group["eps"])
        if group["momentum"]:
            buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_addcdiv_(buffers, gradients, divisors)
            torch._foreach_add_(parameters, buffers, alpha=-group["lr"])
        else:
            torch._foreach_addcdiv_(parameters, gradients, divisors, value=-group["lr"])


def least_moments(config: OptimConfig) -> int:
    """How many numbers ``--optimizer`` keeps for each weight at least; Muon has more for weights that are no matrix."""
    return {"rmsprop": 1 + bool(config.rmsprop_momentum), "muon": 1}.get(config.optimizer, 2)


class RefusableOptimizer:
    """What ``--optimizer`` names, for some ``parameters`` of a model: two optimizers for Muon, else one."""

    def __init__(self, parameters: Sequence[nn.Parameter], matrices: Set[nn.Parameter], config: OptimConfig) -> None:
        """``matrices``: weights that Muon is made for, of these parameters or others: matrices and kernels."""
        self.parameters = list(parameters)
        self._name = config.optimizer
        self._optimizers = _make_optimizers(self.parameters, matrices, config)
        self._settings = [{key: group[key] for key in group if key != "params"} for group in self.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters and their hyperparameters, as torch's optimizers have them."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def adopt(self, config: OptimConfig) -> None:
        """Continue under the hyperparameters of ``config``, with the same moments; it names the same optimizer."""
        assert config.optimizer == self._name
        own = _rmsprop_settings(config) if config.optimizer == "rmsprop" else _adam_settings(config)
        wanted = own if config.optimizer == "adam" else {**own, "weight_decay": config.weight_decay}
        for group, settings in zip(self.param_groups, self._settings, strict=True):
            # RMSprop has no weight decay, and Muon no epsilon.
            changed = {key: value for key, value in wanted.items() if key in settings}
            group.update(changed)
            settings.update(changed)

    def step(self, rate: float | Tensor, taken: Tensor) -> None:
        """Step along the gradients at the learning rate ``rate`` if ``taken`` (0-dim bool). See NOTE [Refused step].

        rate: a 0-dim float32 tensor is read on the device, as a recorded step needs it; only by Adam and AdamW.
        """
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
                if isinstance(rate, Tensor):
                    group["capturable"] = True  # torch asks for it during a capture, and else warns of it once
                    optimizer._warned_capturable_if_run_uncaptured = True
            if optimizer.defaults.get("fused"):
                optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
                optimizer.step()
            else:
                with _restoring(optimizer, taken):
                    optimizer.step()

    def moments(self) -> list[Tensor]:
        """All that a step changes beside weights; none before the first one."""
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def forget(self) -> None:
        """Be as before the first step."""
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with ``name``, and with ``rest``: the state of Muon's second optimizer."""
        first, *rest = [optimizer.state_dict() for optimizer in self._optimizers]
        for group in [group for state in (first, *rest) for group in state["param_groups"]]:
            group["lr"] = float(group["lr"])
        return {**first, "name": self._name, "rest": rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the saved moments, without their hyperparameters; raises ValueError if they do not fit."""
        name = state.get("name", "adam")  # old checkpoints have no name: Adam was the only one
        if name != self._name:
            raise ValueError(f"it was saved with --optimizer={name}, and --optimizer={self._name} has other moments")
        states = [{"state": state["state"], "param_groups": state["param_groups"]}, *state.get("rest", ())]
        for optimizer, saved in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(saved)
        for group, settings in zip(self.param_groups, self._settings, strict=True):
            group.update(settings)


@contextlib.contextmanager
def _restoring(optimizer: torch.optim.Optimizer, taken: Tensor) -> Iterator[None]:
    """Put back what a step inside has changed, unless ``taken``: parameters, and what ``init_group`` has created."""
    groups, state = optimizer.param_groups, optimizer.state
    for group in groups:
        optimizer.init_group(group)  # type: ignore[attr-defined]
    parameters = [parameter for group in groups for parameter in group["params"]]
    moments = {parameter: dict(state[parameter]) for parameter in parameters}
    tensors = [*parameters, *(tensor for kept in moments.values() for tensor in kept.values())]
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        torch._foreach_copy_(tensors, [torch.where(taken, new, old) for new, old in zip(tensors, before, strict=True)])
    # LAMB notes its norms, and LAMB and Muon count steps for corrections that are not used here: neither has any
    # effect, and neither could be taken back.
    for parameter, kept in moments.items():
        state[parameter] = kept
    for group in groups:
        group.pop("step", None)


def _adam_settings(config: OptimConfig) -> dict[str, Any]:
    return {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_eps}


def _rmsprop_settings(config: OptimConfig) -> dict[str, Any]:
    return {"alpha": config.rmsprop_alpha, "momentum": config.rmsprop_momentum, "eps": config.rmsprop_eps}


def _make_optimizers(
    parameters: list[nn.Parameter], matrices: Set[nn.Parameter], config: OptimConfig
) -> list[torch.optim.Optimizer]:
    """What ``--optimizer`` names. Weight decay is decoupled: rate x ``weight_decay``, apart from the gradient."""
    # The rate is set before each step: Coefficients alone knows it.
    adaptive, decay = {"lr": 0.0, **_adam_settings(config)}, config.weight_decay
    match config.optimizer:
        case "adam":
            return [Adam(parameters, fused=True, **adaptive)]
        case "adamw":
            return [AdamW(parameters, fused=True, weight_decay=decay, **adaptive)]
        case "rmsprop":
            return [RMSprop(parameters, lr=0.0, tf_style=config.rmsprop_tf_style, **_rmsprop_settings(config))]
        case "lamb":
            from pytorch_optimizer import Lamb

            # As published (You et al. 2020, version 3), moments are not corrected: the trust ratio sets the size of a
            # step. The library's correction of the first moment alone would make first steps 1 / (1 - beta1) as large.
            return [Lamb(parameters, weight_decay=decay, adam_debias=True, **adaptive)]
        case "muon":
            from pytorch_optimizer import Muon

            mine = [parameter for parameter in parameters if parameter in matrices]
            rest = [parameter for parameter in parameters if parameter not in matrices]
            partner = AdamW(rest, fused=True, weight_decay=decay, **adaptive)
            if not mine:
                return [partner]
            # With the adjusted rate a step is about as large as AdamW's (Liu et al. 2025, "Muon is scalable for LLM
            # training", section 2.2), so that one learning rate serves both.
            group = {"params": mine, "use_muon": True}
            return [Muon([group], lr=0.0, weight_decay=decay, use_adjusted_lr=True), partner]
