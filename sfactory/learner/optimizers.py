"""Room: optimisers whose step may be refused on the device. In: parameters, ``OptimConfig``. Out: steps, made or not.

NOTE [A refused step]: whether a step is made is a tensor on the device of the weights. A step that is not made changes
nothing: neither weights nor moments nor the count of steps that moments are corrected by. Torch's fused optimisers see
to that themselves. With the others all that a step changes is copied before it, and afterwards put back or not.

Room: RMSprop, in torch's style and in TensorFlow's. In: parameters with gradients. Out: changed parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfactory.config.schema import OptimConfig


class RMSprop(torch.optim.Optimizer):
    """Divides gradients by the root of a running mean of their squares.

    s <- alpha s + (1 - alpha) g^2;  m <- momentum m + g / d;  p <- p - lr m.
    As in torch: s = 0 at the start, d = sqrt(s) + eps. As in TensorFlow: s = 1 at the start, d = sqrt(s + eps). An eps
    that was tuned for one says nothing about the other.
    Source: Tieleman and Hinton 2012, "Neural networks for machine learning", lecture 6.5.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        alpha: float,
        momentum: float,
        eps: float,
        tf_style: bool,
    ) -> None:
        """``tf_style``: TensorFlow's instead of torch's."""
        settings = {"lr": lr, "alpha": alpha, "momentum": momentum, "eps": eps, "tf_style": tf_style}
        super().__init__(parameters, settings)

    def init_group(self, group: dict[str, Any]) -> None:
        """Make the moments that the group's parameters have not got yet."""
        for parameter in group["params"]:
            moments = self.state[parameter]
            if "square_avg" not in moments:
                moments["square_avg"] = torch.full_like(parameter, 1.0 if group["tf_style"] else 0.0)
            if group["momentum"] and "momentum_buffer" not in moments:
                moments["momentum_buffer"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step along the gradients; ``closure`` is not looked at."""
        for group in self.param_groups:
            self.init_group(group)
            self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
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


class _Part(Protocol):
    """One of torch's optimisers, and how a step of it is refused."""

    optimizer: torch.optim.Optimizer

    def step(self, taken: Tensor) -> None:
        """A step if ``taken`` (0-dim bool), else nothing."""


class _Fused:
    """One that looks at ``found_inf`` before it changes anything; it is how gradient scaling skips a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, taken: Tensor) -> None:
        self.optimizer.found_inf = (~taken).float()  # type: ignore[attr-defined]
        self.optimizer.step()


class _Restored:
    """One that always changes what it knows of: its parameters, and the tensors that ``init_group`` makes."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @torch.no_grad()
    def step(self, taken: Tensor) -> None:
        groups, state = self.optimizer.param_groups, self.optimizer.state
        for group in groups:
            self.optimizer.init_group(group)  # type: ignore[attr-defined]
        parameters = [parameter for group in groups for parameter in group["params"]]
        moments = {parameter: dict(state[parameter]) for parameter in parameters}
        tensors = [*parameters, *(tensor for kept in moments.values() for tensor in kept.values())]
        before = [tensor.clone() for tensor in tensors]
        self.optimizer.step()
        after = [torch.where(taken, new, old) for new, old in zip(tensors, before, strict=True)]
        torch._foreach_copy_(tensors, after)
        # LAMB notes its norms, too, and LAMB and Muon count steps for corrections that are not used here: neither has
        # any effect, and neither could be taken back.
        for parameter, kept in moments.items():
            state[parameter] = kept
        for group in groups:
            group.pop("step", None)


class GuardedOptimizer:
    """What ``--optimizer`` names, for some parameters of a model. ``parameters``: these."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], matrices: Set[nn.Parameter], config: OptimConfig, rate: float
    ) -> None:
        """``matrices``: the weights, of these or others, that Muon is for: matrices and kernels of hidden layers."""
        self.parameters = list(parameters)
        self._name = config.optimizer
        self._parts = _parts_of(self.parameters, matrices, config, rate)
        self._settings = [{key: group[key] for key in group if key != "params"} for group in self.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters and their hyperparameters, as torch's optimisers have them."""
        return [group for part in self._parts for group in part.optimizer.param_groups]

    def adopt(self, config: OptimConfig) -> None:
        """Go on under the hyperparameters of ``config``, with the same moments; it names the same optimiser."""
        assert config.optimizer == self._name
        betas = {"betas": (config.adam_beta1, config.adam_beta2), "eps": config.adam_eps}
        if config.optimizer == "rmsprop":
            betas = {"alpha": config.rmsprop_alpha, "momentum": config.rmsprop_momentum, "eps": config.rmsprop_eps}
        wanted: dict[str, Any] = {**betas, "weight_decay": config.weight_decay}
        for group, settings in zip(self.param_groups, self._settings, strict=True):
            # Adam knows a weight decay, too, that it is never given; Muon has no epsilon.
            changed = {key: value for key, value in wanted.items() if settings.get(key)}
            group.update(changed)
            settings.update(changed)

    def step(self, rate: float, taken: Tensor) -> None:
        """Step along the gradients if ``taken`` (0-dim bool). Otherwise nothing changes, see NOTE [A refused step]."""
        for group in self.param_groups:
            group["lr"] = rate
        for part in self._parts:
            part.step(taken)

    def state_dict(self) -> dict[str, Any]:
        """As torch's, with ``name``, and with ``rest``: that of Muon's partner."""
        first, *rest = [part.optimizer.state_dict() for part in self._parts]
        return {**first, "name": self._name, "rest": rest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the saved moments, under the hyperparameters of this configuration, not the saved ones.

        Raises ValueError if they are another optimiser's, or those of other parameters.
        """
        # Before there was a choice, checkpoints did not tell.
        name = state.get("name", "adam")
        if name != self._name:
            raise ValueError(f"it was saved with --optimizer={name}, and --optimizer={self._name} has other moments")
        states = [{"state": state["state"], "param_groups": state["param_groups"]}, *state.get("rest", ())]
        for part, saved in zip(self._parts, states, strict=True):
            part.optimizer.load_state_dict(saved)
        for group, settings in zip(self.param_groups, self._settings, strict=True):
            group.update(settings)


def _parts_of(
    parameters: list[nn.Parameter], matrices: Set[nn.Parameter], config: OptimConfig, rate: float
) -> list[_Part]:
    """What ``optimizer`` names. Where weights decay they do so by rate x ``weight_decay``, apart from the gradient."""
    betas = config.adam_beta1, config.adam_beta2
    adaptive: dict[str, Any] = {"lr": rate, "betas": betas, "eps": config.adam_eps}
    decay = config.weight_decay
    match config.optimizer:
        case "adam":
            return [_Fused(torch.optim.Adam(parameters, fused=True, **adaptive))]
        case "adamw":
            return [_Fused(torch.optim.AdamW(parameters, fused=True, weight_decay=decay, **adaptive))]
        case "rmsprop":
            return [_Restored(_rmsprop(parameters, config, rate))]
        case "lamb":
            return [_Restored(_lamb(parameters, decay, adaptive))]
        case "muon":
            mine = [parameter for parameter in parameters if parameter in matrices]
            rest = [parameter for parameter in parameters if parameter not in matrices]
            partner = _Fused(torch.optim.AdamW(rest, fused=True, weight_decay=decay, **adaptive))
            return [_Restored(_muon(mine, decay, rate)), partner] if mine else [partner]


def _rmsprop(parameters: list[nn.Parameter], config: OptimConfig, rate: float) -> RMSprop:
    return RMSprop(
        parameters,
        lr=rate,
        alpha=config.rmsprop_alpha,
        momentum=config.rmsprop_momentum,
        eps=config.rmsprop_eps,
        tf_style=config.rmsprop_tf_style,
    )


def _lamb(parameters: list[nn.Parameter], decay: float, adaptive: dict[str, Any]) -> torch.optim.Optimizer:
    from pytorch_optimizer import Lamb

    # As published in the end (You et al. 2020, version 3), the moments are not corrected: the trust ratio, which sets
    # the size of a step, makes up for it. The library would correct the first moment behind it, and so take first
    # steps that are 1 / (1 - beta1) times as large.
    return Lamb(parameters, weight_decay=decay, adam_debias=True, **adaptive)


def _muon(matrices: list[nn.Parameter], decay: float, rate: float) -> torch.optim.Optimizer:
    from pytorch_optimizer import Muon

    # With the adjusted rate a step is about as large as AdamW's (Liu et al. 2025, "Muon is scalable for LLM training",
    # section 2.2), so that one learning rate serves both.
    group = {"params": matrices, "use_muon": True}
    return Muon([group], lr=rate, weight_decay=decay, use_adjusted_lr=True)
