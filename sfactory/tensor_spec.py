"""Describes one array, and how the network reads it if it is an observation: numbers, choices, image, action mask.

``--obs_layout`` decides; without it only uint8 arrays of the shape of an image are images.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from sfactory.config.schema import BY_RANK, LAYOUTS, ModelConfig, keys_and_layouts
from sfactory.errors import EnvError

Layout = Literal[
    "flat", "choices", "mask", "entities", "hw", "hwc", "chw", "thwc", "tchw", "present", "last_action", "last_reward"
]
# Those that are no LAYOUTS: present: which entities of another observation there are; the others for --core_inputs.
Reader = Literal["actor", "critic"]

MASK_KEY = "action_mask"  # an observation of this name is the action mask

_SHOWN = 5  # observations that have changed
# Their letters are the dimensions: t: stack, h: height, w: width, c: channels
_IMAGES = ("hw", "hwc", "chw", "thwc", "tchw")
_MOST_COLORS = 4  # channels of a colored image with transparency
_MOST_CHANNELS = 32  # of an image in a stack; with more it is rather a volume
_SMALLEST_SIDE = 16  # of an image: smaller arrays are rather boards and views of grids
_USUAL_PIXELS = 84 * 84  # of an image that a policy sees (Mnih et al. 2015)
_MANY_TIMES = 4.0  # so many pixels are mostly spent on a picture for people


PLAIN_STACKS: dict[str, tuple[tuple[int, int, int], ...]] = {  # channels, kernel and stride of each convolution
    "convnet_simple": ((32, 8, 4), (64, 4, 2), (128, 3, 2)),
    "convnet_impala": ((16, 8, 4), (32, 4, 2)),  # Espeholt et al. 2018, the shallow network
    "convnet_atari": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "convnet_minatar": ((16, 3, 1),),  # Young & Tian 2019, for images of 10x10
}


def least_image_size(architecture: str) -> int:
    """The smallest height and width of an image for which each convolution gets as many pixels as its kernel."""
    size = 1
    for _, kernel, stride in reversed(PLAIN_STACKS.get(architecture, ())):
        size = (size - 1) * stride + kernel
    return size


class ImageShape(NamedTuple):
    """Size of an image, channels first."""

    channels: int
    height: int
    width: int


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without batch dimensions) and numpy dtype name of one array.

    sizes, starts: of integers with finite bounds, the number of values and the first value of each element (one entry
    if all elements are alike); empty for other numbers. categorical: values are names of things and not amounts.
    layout: how the network reads it, if it is an observation. heads: of an action mask, the number of choices of each
    action head whose choices its elements allow or forbid, one head after the other. sole_reader: who alone reads an
    observation; None: actor and critic.
    """

    shape: tuple[int, ...]
    dtype: str
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    categorical: bool = False
    layout: Layout = "flat"
    heads: tuple[int, ...] = ()
    sole_reader: Reader | None = None

    @property
    def is_choice(self) -> bool:
        """Whether it is read as choices: one-hot or embedded, and never normalized."""
        return self.layout == "choices"

    @property
    def is_image(self) -> bool:
        """Whether it is read by convolutions."""
        return self.layout in _IMAGES

    @property
    def is_mask(self) -> bool:
        """Whether it says which actions are legal; the network does not see it."""
        return self.layout == "mask"

    @property
    def is_number(self) -> bool:
        """Whether it is read as amounts, which may be normalized."""
        return self.layout not in ("choices", "mask", "present", "last_action")

    @property
    def is_core_input(self) -> bool:
        """Whether the core reads it, and not the encoder."""
        return self.layout in ("last_action", "last_reward")

    @property
    def image_shape(self) -> ImageShape:
        """Size of the image that is read; the images of a stack are channels."""
        return _image_shape(self.shape, self.layout)

    @property
    def limits(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """The least and the largest value of each element of a categorical array, of a shape that fits; else None."""
        if not self.categorical:
            return None
        starts = np.array(self.starts, np.int64)
        least, largest = np.broadcast_arrays(starts, starts + np.array(self.sizes, np.int64) - 1)
        shape = self.shape if least.size > 1 else ()
        return least.reshape(shape), largest.reshape(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one element of a batch."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


ObsSpec = tuple[tuple[str, TensorSpec], ...]


def with_layouts(obs: ObsSpec, config: ModelConfig) -> ObsSpec:
    """The observations with their layouts. Raises EnvError if ``--obs_layout`` does not fit them."""
    given: dict[str, Layout]
    if config.obs_layout == BY_RANK:
        given = {path: (len(spec.shape) == 3 and _layout_of_image(spec.shape)) or "flat" for path, spec in obs}
    else:
        given = _given(config.obs_layout, [path for path, _ in obs])
    for path, layout in given.items():
        _require_fit(path, dict(obs)[path], layout)
    masks = _entity_masks(dict(obs), given)
    return tuple(
        (
            path,
            dataclasses.replace(spec, layout=masks.get(path) or given.get(path) or _default_layout(path, spec, config)),
        )
        for path, spec in obs
    )


def other_places(checkpoint: Path, trained: ObsSpec, here: ObsSpec) -> str:
    """A warning if observations have other keys, another order or dtype than those ``trained`` with; or "".

    Weights and statistics go by place, so that those of equal shapes fit any of them; masks have none.
    """
    read = ((leaf for leaf in obs if not leaf[1].is_mask) for obs in (trained, here))
    there, now = ([f"{path!r} ({leaf.dtype})" for path, leaf in obs] for obs in read)
    pairs = itertools.zip_longest(there, now, fillvalue="none")
    differing = [f"{after} in the place of {before}" for before, after in pairs if before != after]
    if not differing:
        return ""
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return (
        f"{checkpoint} was trained with other observations: weights and statistics go by the place of an observation, "
        f"and there is {'; '.join(differing[:_SHOWN])}{more}"
    )


def presence_of(path: str) -> str:
    """The path of the observation that says which of the entities ``path`` there are."""
    return f"{path}_mask"


def _entity_masks(specs: dict[str, TensorSpec], given: dict[str, Layout]) -> dict[str, Layout]:
    """Layouts by path of the masks of entities. Raises EnvError for one that does not fit."""
    masks: dict[str, Layout] = {}
    for path in [path for path, layout in given.items() if layout == "entities"]:
        mask, entities = presence_of(path), specs[path].shape[0]
        if mask not in specs:
            continue
        if specs[mask].shape != (entities,) or mask in given:
            raise EnvError(
                f"--obs_layout={path}=entities: observation {mask!r} says which of the {entities} entities there are; "
                f"it must have the shape ({entities},), and no layout of its own: rename it in the env if it is another"
            )
        masks[mask] = "present"
    return masks


def _image_shape(shape: tuple[int, ...], layout: Layout) -> ImageShape:
    sizes = dict(zip(layout, shape, strict=True))
    return ImageShape(sizes.get("t", 1) * sizes.get("c", 1), sizes["h"], sizes["w"])


def _default_layout(path: str, spec: TensorSpec, config: ModelConfig) -> Layout:
    if is_mask(path, config.obs_layout):
        return "mask"
    if spec.categorical and config.one_hot_max:
        return "choices"
    layout = _layout_of_image(spec.shape) if spec.dtype == "uint8" else None
    least = max(_SMALLEST_SIDE, least_image_size(config.encoder_conv_architecture))
    if layout is None or min(_image_shape(spec.shape, layout)[1:]) < least:
        return "flat"
    return layout


def _layout_of_image(shape: tuple[int, ...]) -> Layout | None:
    """The most likely layout of an array of that shape if it is an image; None if it is none."""
    if len(shape) == 2:
        return "hw"
    if len(shape) == 3:
        # Channels are fewer than rows and columns: (84, 84, 3) is hwc; (4, 84, 84) and 17 planes (17, 9, 9) are chw.
        return "hwc" if shape[2] < min(shape[0], shape[1]) else "chw"
    if len(shape) == 4 and shape[3] <= min(_MOST_CHANNELS, *(side - 1 for side in shape[1:3])):
        return "thwc"
    if len(shape) == 4 and shape[1] <= min(_MOST_CHANNELS, *(side - 1 for side in shape[2:])):
        return "tchw"
    return None


def is_mask(path: str, obs_layout: tuple[str, ...]) -> bool:
    """Whether an observation is an action mask: ``--obs_layout`` says so, or says nothing and the path does."""
    by_path = "mask" if path.partition("/")[0] == MASK_KEY and obs_layout != BY_RANK else "flat"
    return dict(keys_and_layouts(obs_layout)).get(path, by_path) == "mask"


def _given(obs_layout: tuple[str, ...], paths: list[str]) -> dict[str, Layout]:
    """Layouts by path of ``--obs_layout``: KEY=LAYOUT, or one LAYOUT for an env with a single observation."""
    layouts: dict[str, Layout] = {}
    for key, name in keys_and_layouts(obs_layout):
        path = key or (paths[0] if len(paths) == 1 else "")
        entry = f"{key}={name}" if key else name
        if path not in paths:
            raise EnvError(f"--obs_layout={entry}: write KEY=LAYOUT with one of the keys {', '.join(paths)}")
        if name not in LAYOUTS:
            raise EnvError(f"--obs_layout={entry}: {name!r} is none of {', '.join(LAYOUTS)}")
        layouts[path] = cast(Layout, name)
    return layouts


def _require_fit(path: str, spec: TensorSpec, layout: Layout) -> None:
    if misfit := _misfit(spec, layout):
        fitting = [each for each in LAYOUTS if each != "mask" and not _misfit(spec, each)]
        raise EnvError(
            f"--obs_layout={path}={layout}: observation {path!r} of shape {spec.shape} and dtype {spec.dtype} {misfit}"
            f": write {' or '.join(f'{path}={each}' for each in fitting)} in its place"
        )


def _misfit(spec: TensorSpec, layout: str) -> str:
    """Why an observation cannot be read so; "" if it can."""
    if layout == "choices" and not spec.sizes:
        return "has no finite number of values, as integers with finite bounds have"
    needed = len(layout) if layout in _IMAGES else 2 if layout == "entities" else len(spec.shape)
    return f"has {len(spec.shape)} dimensions, and this layout needs {needed}" if len(spec.shape) != needed else ""


def describe(path: str, spec: TensorSpec, normalized: bool, apart: bool = False) -> str:
    """How one leaf is read, for the log. apart: actor and critic do not read the same leaves."""
    text = f"observation {path!r} ({spec.dtype}, shape {spec.shape}) is read"
    if spec.is_mask:
        return f"{text} as the mask of legal actions, over {' + '.join(map(str, spec.heads))} choices"
    if spec.layout == "present":
        return f"{text} as the mask of entities"
    reader = f"the {spec.sole_reader} alone" if spec.sole_reader else "actor and critic"
    text += f" by {reader} as" if apart else " as"
    how = "normalized" if normalized else "not normalized"
    elements = math.prod(spec.shape)
    if spec.layout == "entities":
        return f"{text} a set of up to {spec.shape[0]} entities of {spec.shape[1]} numbers each, {how}"
    if spec.is_choice:
        few, many = min(spec.sizes), max(spec.sizes)
        values = f"{few} values" if few == many else f"{few} to {many} values"
        return f"{text} one choice of {values}" if elements == 1 else f"{text} {elements} choices of {values}"
    if spec.is_image:
        channels, height, width = spec.image_shape
        text = f"{text} an image of {height}x{width} with {channels} channels ({spec.layout}), {how}"
        if (times := height * width / _USUAL_PIXELS) < _MANY_TIMES:
            return text
        return (
            f"{text}; the network costs about {times:.0f} times as much as over 84x84, which --obs_resize 84 84 can "
            "make of it"
        )
    text = f"{text} {elements} number{'s' * (elements != 1)}{' for the core' if spec.is_core_input else ''}, {how}"
    if len(spec.shape) == 3 and spec.dtype.startswith("float") and (layout := _layout_of_image(spec.shape)):
        channels, *sides = _image_shape(spec.shape, layout)
        if channels <= _MOST_COLORS and min(sides) >= _SMALLEST_SIDE:
            return f"{text}; --obs_layout={path}={layout} reads it as an image"
    return text
