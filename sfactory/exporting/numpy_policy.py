"""Acts by NumPy alone, with arrays that ``python -m sfactory.export --format=numpy`` has written.

This file stands beside the arrays, and needs nothing else:

    policy = Policy("cartpole.npz")
    action = policy({"obs": obs[None]})["action"][0]

The arrays hold numbers and a description as JSON; reading them executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Named = Mapping[str, Array]

ACTIVATIONS: Mapping[str, Any] = {
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


class Policy:
    """Chooses the most probable action.

    Called with {path: [B, ...]}, the observations as the env gives them, action masks among them. Returns the leaves of
    the action as the env takes them, and ``dist_params`` [B, P] float32: ``n`` logits of each choice, ``size`` means
    and then ``size`` log standard deviations of each box.

    about: what the policy is of: env, env_spec, env_steps and more.
    """

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            self._arrays = dict(file)
        self.about = json.loads(str(self._arrays.pop("about")))
        self._network = json.loads(str(self._arrays.pop("network")))

    def __call__(self, inputs: Named) -> dict[str, Array]:
        """See the class."""
        network = self._network
        features = [self._encoded(name, encoder, inputs) for name, encoder in network["encoders"].items()]
        x = self._layers("decoder", network["decoder_layers"], np.concatenate(features, axis=1))
        params = x @ self._arrays["policy/weight"].T + self._arrays["policy/bias"]
        if bound := network["tanh_bound"]:
            params = np.where(self._arrays["policy/is_mean"], bound * np.tanh(params / bound), params)
        if network["masks"]:
            legal = np.ones(params.shape, bool)
            masks = [np.asarray(inputs[name]).reshape(len(params), -1) != 0 for name in network["masks"]]
            legal[:, self._arrays["policy/masked"]] = np.concatenate(masks, axis=1)
            params = np.where(legal, params, np.float32(network["impossible"]))
        actions = {name: self._action(leaf, params) for name, leaf in network["actions"].items()}
        return {**actions, network["dist_params"]: params}

    def _encoded(self, name: str, encoder: Mapping[str, Any], inputs: Named) -> Array:
        """Features [B, F] of the leaves that one MLP reads."""
        leaves = [
            self._choices(f"{name}/{index}", leaf, inputs[leaf["path"]])
            if leaf["is_choice"]
            else self._numbers(f"{name}/{index}", leaf, inputs[leaf["path"]])
            for index, leaf in enumerate(encoder["leaves"])
        ]
        return self._layers(name, encoder["layers"], np.concatenate(leaves, axis=1))

    def _numbers(self, name: str, leaf: Mapping[str, Any], values: Array) -> Array:
        """Normalised or scaled, [B, F] float32."""
        center, shift, scale = (self._arrays[f"{name}/{fact}"] for fact in ("center", "shift", "scale"))
        scaled = (np.asarray(values) - center).astype(np.float32) * scale + shift
        clipped: Array = np.clip(scaled, -leaf["clip"], leaf["clip"]) if leaf["clip"] else scaled
        return clipped.reshape(len(clipped), -1)

    def _choices(self, name: str, leaf: Mapping[str, Any], values: Array) -> Array:
        """One-hot, or rows of a table, [B, F] float32."""
        values = np.asarray(values).reshape(len(values), -1).astype(np.int64)
        places = np.clip(values, self._arrays[f"{name}/starts"], self._arrays[f"{name}/last"])
        places += self._arrays[f"{name}/offsets"]
        if leaf["width"] is None:
            rows: Array = self._arrays[f"{name}/table"][places]
            return rows.reshape(len(rows), -1)
        features = np.zeros((len(places), leaf["width"]), np.float32)
        np.put_along_axis(features, places, 1.0, axis=1)
        return features

    def _layers(self, name: str, count: int, x: Array) -> Array:
        """Linear layers, each followed by its normalisation, if any, and the activation."""
        for index in range(count):
            layer = f"{name}/layer{index}"
            x = x @ self._arrays[f"{layer}/weight"].T + self._arrays[f"{layer}/bias"]
            if f"{layer}/gain" in self._arrays:
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
                x = x * self._arrays[f"{layer}/gain"] + self._arrays[f"{layer}/shift"]
            x = ACTIVATIONS[self._network["activation"]](x)
        return x

    def _action(self, leaf: Mapping[str, Any], params: Array) -> Array:
        """[B, ...]: a leaf of the action."""
        if leaf["is_choice"]:
            chosen = [params[:, a : a + n].argmax(1) + start for a, n, start in leaf["choices"]]
            shape = leaf["stacked"]
            return chosen[0] if shape is None else np.stack(chosen, axis=1).reshape(-1, *shape)
        name = f"action{leaf['first']}"
        low, high, center, scale, squashed = (
            self._arrays[f"{name}/{fact}"] for fact in ("low", "high", "center", "scale", "squashed")
        )
        mean = params[:, leaf["first"] : leaf["first"] + low.size]
        mean = np.where(squashed, np.tanh(mean), mean).astype(np.float64)
        action = (np.clip(mean, low, high) * scale + center).astype(leaf["dtype"])
        bounds = ((bound * scale + center).astype(leaf["dtype"]) for bound in (low, high))
        clipped: Array = np.clip(action, *bounds)
        return clipped.reshape(-1, *leaf["shape"])
