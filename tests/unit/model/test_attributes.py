"""A module whose attributes are at hand computes what it did, and follows its weights as it did."""

from __future__ import annotations

import torch
from torch import nn

from sfactory.model.precision import attributes_at_hand


class Scaled(nn.Module):
    """A layer, a buffer that scales what it gives, and a parameter that there is none of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_parameter("shift", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 2] of x: [B, 3]."""
        scaled: torch.Tensor = self.layer(x) * self.scale
        return scaled


def test_every_part_is_found_without_the_detour() -> None:
    model = Scaled()
    attributes_at_hand(model)

    assert {"layer", "scale", "shift"} <= set(model.__dict__)
    assert {"weight", "bias"} <= set(model.layer.__dict__)


def test_what_is_written_into_its_tensors_is_used() -> None:
    model, x = Scaled(), torch.randn(4, 3)
    attributes_at_hand(model)

    with torch.no_grad():
        model.layer.weight.data = torch.ones(2, 3)
        model.layer.bias.zero_()
        model.scale.fill_(3.0)

    torch.testing.assert_close(model(x), 3.0 * x.sum(1, keepdim=True).expand(4, 2))


def test_its_state_has_the_names_that_it_had() -> None:
    model = Scaled()
    names = list(model.state_dict())
    attributes_at_hand(model)

    assert list(model.state_dict()) == names
    assert len(list(model.parameters())) == 2
