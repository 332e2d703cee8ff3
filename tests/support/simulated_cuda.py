"""What stands in for torch.cuda while a GPU is simulated, and the modes of torch by which threads compute on it."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # the rest of torch, which torch imports when it is first used, and which reads torch.cuda
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sfactory.inference.policy_worker import Gather, StateGather
from sfactory.learner.staging import Staging
from sfactory.shared.weights import SharedWeights
from tests.support.simulated_gpu import GpuTensor, Graph, SimulatedGpu, gpus, leaves_of
from tests.support.stream_order import Stream

_FACTORIES = frozenset((torch.tensor, torch.as_tensor))
_MEMORY = 80 * 2**30  # bytes of a GPU, all of them free
_FUSED = frozenset((torch.gru_cell, torch.lstm_cell))  # by two products and one kernel on a GPU, else by many


class _Functions(TorchFunctionMode):
    """Says "meta" to torch where sfactory says "cuda", and keeps in mind which memory of the host is pinned."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self._gpu, dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        if "device" in kwargs:
            kwargs["device"] = gpu.inside(kwargs["device"])
            if func in _FACTORIES and kwargs["device"] is not None and kwargs["device"].type == "meta":
                return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        if func is Tensor.to:
            args = tuple(gpu.inside(arg) if isinstance(arg, str | torch.device) else arg for arg in args)
        elif func is Tensor.numpy or func is Tensor.tolist:
            gpu.host_reads(args[0])
        elif func is Tensor.pin_memory:
            return gpu.pin(args[0].clone())
        elif func is Tensor.is_pinned:
            return gpu.memory_of_host(args[0]) is not None
        before = gpu.kernels.copy() if func in _FUSED else None
        result = func(*args, **kwargs)
        if before is not None and isinstance(args[0], GpuTensor):
            gpu.kernels = before + Counter(mm=2, fused_cell=1)
        return gpu.pin(result) if pinned else result


class _Operations(TorchDispatchMode):
    """Brings what makes a tensor on the simulated GPU, and has none as argument, to it."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, device = kwargs or {}, (kwargs or {}).get("device")
        if (device is not None and torch.device(device).type == "meta") or any(
            isinstance(leaf, GpuTensor) for leaf in leaves_of((args, kwargs))
        ):
            return self._gpu.run(func, args, kwargs)
        return func(*args, **kwargs)


_Generator = torch.Generator


class GpuGenerator(_Generator):
    """A generator of random numbers on the simulated GPU."""


class _GeneratorType(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)

    def __call__(cls, device: torch.device | str = "cpu") -> torch.Generator:
        return _Generator() if torch.device(device).type == "cpu" else GpuGenerator()


class _AnyGenerator(_Generator, metaclass=_GeneratorType):
    """Stands for torch.Generator."""


class SimulatedCuda:
    """What stands in for functions of torch.cuda while a GPU is simulated."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._modes: dict[int, list[Any]] = {}  # by thread

    def set_device(self, device: torch.device | str | int) -> None:
        """From now on this thread computes on ``device``, and torch's calls in it are simulated."""
        index = device if isinstance(device, int) else torch.device(device).index
        self._gpu.thread.chosen = self._gpu.choices[threading.current_thread().name] = index or 0
        if threading.get_ident() not in self._modes:
            modes = self._modes[threading.get_ident()] = [_Functions(self._gpu), _Operations(self._gpu)]
            for mode in modes:
                mode.__enter__()

    def leave(self) -> None:
        """This thread computes on no GPU again."""
        for mode in reversed(self._modes.pop(threading.get_ident(), [])):
            mode.__exit__(None, None, None)

    @contextlib.contextmanager
    def graph(self, graph: Graph, *, stream: Stream | None = None, **_: object) -> Iterator[None]:
        """Stands for torch.cuda.graph, which takes a stream of the chosen GPU if none is given."""
        stream = stream or self._gpu.new_stream()
        self._gpu.captures.append(stream.device)
        with self._gpu.entered(stream):
            self._gpu.capture = graph
            try:
                yield
            finally:
                self._gpu.capture = None
                graph.finish()


@contextlib.contextmanager
def simulated(patch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    """GPUs "cuda:0" and others, in this thread after it has chosen one, and in those that choose one."""
    gpu = SimulatedGpu()
    cuda = SimulatedCuda(gpu)
    stands_for = {
        "Stream": gpu.new_stream,
        "Event": gpu.new_event,
        "current_stream": gpu.current_stream,
        "stream": gpu.entered,
        "set_device": cuda.set_device,
        "current_device": lambda: gpu.chosen("torch.cuda.current_device"),
        "CUDAGraph": Graph,
        "graph": cuda.graph,
        "graph_pool_handle": lambda: (0, gpu.next_number()),
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": lambda device=None: (_MEMORY, _MEMORY),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
    }
    for name, function in stands_for.items():
        patch.setattr(torch.cuda, name, function)
    patch.setattr(torch.cuda, "_lazy_init", lambda: gpu.chosen("torch"))  # asked for where no mode is entered
    patch.setattr(torch, "Generator", _AnyGenerator)
    # In inference mode torch splits up fewer operations, and not all of them work with tensors of other classes.
    patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else contextlib.nullcontext())
    # Elsewhere modes end where an env's code ended; here they are the GPU.
    patch.setattr(torch._C, "_len_torch_function_stack", lambda: 0)
    patch.setattr("torch.nn.utils.clip_grad._has_foreach_support", lambda tensors, device: True)
    _watch_the_host(patch, gpu)
    gpus.append(gpu)
    try:
        yield gpu
    finally:
        cuda.leave()
        gpus.remove(gpu)


def _watch_the_host(patch: pytest.MonkeyPatch, gpu: SimulatedGpu) -> None:
    """Check where sfactory writes memory of the host by numpy, which torch does not see."""

    def watched(kind: Any, method: str, written: Callable[..., Iterable[Tensor]]) -> None:
        original = getattr(kind, method)

        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in written(self, *args):
                gpu.host_writes(tensor)
            return original(self, *args, **kwargs)

        patch.setattr(kind, method, checked)

    watched(Staging, "take", lambda area, *_: area.tensors())
    watched(Gather, "obs", lambda gather, *_: gather._staging.values())
    watched(StateGather, "before", lambda gather, *_: [gather._staging])
    watched(SharedWeights, "read_into", lambda weights, target: [torch.from_numpy(target)])
