"""``attributes_at_hand`` changes neither results nor names, and later weights are used."""

from __future__ import annotations

import torch
from torch import nn

from sfactory.model.precision import attributes_at_hand


class Scaled(nn.Module):
    """A layer, a buffer that scales its output, and a parameter that is None."""

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


def test_every_part_is_a_plain_attribute() -> None:
    model = Scaled()
    attributes_at_hand(model)

    assert {"layer", "scale", "shift"} <= set(model.__dict__)
    assert {"weight", "bias"} <= set(model.layer.__dict__)


def test_new_values_of_tensors_are_used() -> None:
    model, x = Scaled(), torch.randn(4, 3)
    attributes_at_hand(model)

    with torch.no_grad():
        model.layer.weight.data = torch.ones(2, 3)
        model.layer.bias.zero_()
        model.scale.fill_(3.0)

    torch.testing.assert_close(model(x), 3.0 * x.sum(1, keepdim=True).expand(4, 2))


def test_state_keeps_its_names() -> None:
    model = Scaled()
    names = list(model.state_dict())
    attributes_at_hand(model)

    assert list(model.state_dict()) == names
    assert len(list(model.parameters())) == 2
