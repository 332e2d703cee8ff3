"""A GPU that is simulated on the CPU: code that asks for "cuda" runs as it is, and what would go wrong there is found.

Tensors of the simulated GPU say that they are on "cuda:N". For torch they are on the device "meta", for which all its
code takes the general path; their values are computed by CPU tensors inside. No torch build, process or other test is
changed by it: a context enters two modes of torch in the threads that choose the GPU, and replaces ``torch.cuda``.

Found are: tensors on another device than the rest of an operation; a thread that does not choose its GPU first; memory
that is accessed out of order, see stream_order.py. Counted are kernels, copies between host and device, and
where the host waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.support.stream_order import Memory, Place, StreamOrder

# Launch no kernel: views, and memory that nothing is written to.
_VIEWS = """
    view _unsafe_view expand slice select unbind split split_with_sizes chunk t transpose permute unsqueeze squeeze
    detach alias as_strided unflatten narrow reshape diagonal lift_fresh empty empty_like new_empty empty_strided
"""
_FREE = frozenset(_VIEWS.split())
# The host reads a result, or needs the size of it.
_READS = frozenset(("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim"))
_ALLOWED_ON_CPU = frozenset(("_to_copy", "copy_"))  # arguments on different devices


class GpuTensor(Tensor):
    """A tensor of the simulated GPU; ``on_cpu`` has its values."""

    on_cpu: Tensor
    memory: Memory
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, inner: Tensor, index: int, memory: Memory | None = None) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("meta", index),
        )
        made.on_cpu, made.memory = inner, memory or Memory()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", _device_of(self).index)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, GpuTensor)
        _set_data(self, other)
        self.on_cpu, self.memory = other.on_cpu, other.memory

    def tolist(self) -> Any:
        return self.to("cpu").tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Any = self.detach().clone()
        if getattr(self, "_is_param", False):
            copied = copied.requires_grad_(self.requires_grad)
            copied._is_param = True
        memo[id(self)] = copied
        return copied  # type: ignore[no-any-return]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GpuTensor({self.on_cpu})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _active().run(func, args, kwargs or {})


_device_of: Callable[[Tensor], torch.device] = Tensor.device.__get__
_set_data: Callable[[Tensor, Tensor], None] = Tensor.data.__set__  # type: ignore[attr-defined]
gpus: list[SimulatedGpu] = []


def _active() -> SimulatedGpu:
    assert gpus, "a tensor of a simulated GPU is used after its end"
    return gpus[-1]


class SimulatedGpu(StreamOrder):
    """The GPUs of a machine, as torch shows them, and counts of what was done since ``clear``.

    kernels: {operation: launches}; wide: those that read or write float64.
    waits: {(reason, Place): number} - the host has waited for what it did not know to have ended.
    copies: {("to device" or "to host", whether asynchronous): number}.
    choices: {thread: GPU that it has chosen}. captures: devices on which graphs were captured.
    """

    def __init__(self) -> None:
        super().__init__()
        self.capture: Graph | None = None
        self.choices: dict[str, int] = {}
        self.captures: list[torch.device] = []
        self._pinned: dict[int, tuple[torch.UntypedStorage, Memory]] = {}
        self.clear()

    def clear(self) -> None:
        """Count from zero."""
        self.kernels: Counter[str] = Counter()
        self.wide: Counter[str] = Counter()
        self.waits: Counter[tuple[str, Place]] = Counter()
        self.copies: Counter[tuple[str, bool]] = Counter()

    def waited(self, what: str, known: bool) -> None:
        if self.capture is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")
        if not known:
            self.waits[what, Place.present()] += 1

    def waits_by_function(self) -> dict[str, int]:
        """{"file function": number} of all waits that sfactory has asked for; files are of sfactory/."""
        found: Counter[str] = Counter()
        for (_, (file, _, function)), number in self.waits.items():
            package, _, name = file.partition("/")
            if package == "sfactory":
                found[f"{name} {function}"] += number
        return dict(found)

    def inside(self, device: Any) -> Any:
        """The device that torch gets for ``device``."""
        if device is None or torch.device(device).type != "cuda":
            return device if device is None else torch.device(device)
        return torch.device("meta", self.index_of(device, "an operation"))

    def pin(self, tensor: Tensor) -> Tensor:
        """Page-lock the memory of a tensor on the host."""
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = storage, Memory()
        return tensor

    def memory_of_host(self, tensor: Tensor) -> Memory | None:
        """Of pinned memory; None: it is not pinned, and so no asynchronous copy uses it."""
        if isinstance(tensor, GpuTensor) or not tensor.numel():
            return None
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return None if found is None else found[1]

    def host_reads(self, tensor: Tensor) -> None:
        """The host reads a tensor of its own. Raises RaceError."""
        memory = self.memory_of_host(tensor)
        if memory is not None:
            memory.read(self.host, "the host")

    def host_writes(self, tensor: Tensor) -> None:
        """As ``host_reads``."""
        memory = self.memory_of_host(tensor)
        if memory is not None:
            memory.write(self.host, "the host")

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operation, check it and count it."""
        with self.lock:
            return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func.name().split("::")[1].split(".")[0]
        device, kwargs = kwargs.get("device"), {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        leaves = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Tensor)]
        mine = [leaf for leaf in leaves if isinstance(leaf, GpuTensor)]
        chosen = self.chosen(name)
        indices = {_device_of(leaf).index for leaf in mine}
        if indices - {chosen}:
            self.index_of(min(indices - {chosen}), name)
        if name in _ALLOWED_ON_CPU:
            return self._copy(func, name, device, args, kwargs)
        if device is not None and torch.device(device).type != "meta":  # made on the host, with a shape of the device
            return func(*_mapped(_inner, args), **_mapped(_inner, kwargs))
        strangers = [leaf for leaf in leaves if not isinstance(leaf, GpuTensor) and (leaf.dim() or leaf.is_meta)]
        if strangers and mine:
            shapes = [tuple(leaf.shape) for leaf in strangers]
            raise RuntimeError(f"{name} at {Place.present()}: tensors of the CPU, of shapes {shapes}, and of the GPU")
        by_mask = name in ("index", "index_put_") and any(
            leaf is not None and leaf.dtype is torch.bool for leaf in args[1]
        )
        return self._compute(func, name, args, kwargs, mine, reads=name in _READS or by_mask)

    def _compute(self, func: Any, name: str, args: Any, kwargs: Any, mine: list[GpuTensor], *, reads: bool) -> Any:
        stream = self.current_stream()
        inner_args, inner_kwargs = _mapped(_inner, args), _mapped(_inner, kwargs)
        changed = _changed(func, args, kwargs)
        if self.capture is not None:
            self.capture.save(changed)
        result = func(*inner_args, **inner_kwargs)
        own = {id(leaf.on_cpu): leaf for leaf in mine}
        memory_of = {leaf.on_cpu.untyped_storage()._cdata: leaf.memory for leaf in mine}
        made: list[GpuTensor] = []

        def outer(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if id(leaf) in own:
                return own[id(leaf)]
            made.append(GpuTensor(leaf, stream.device.index, memory_of.get(leaf.untyped_storage()._cdata)))
            return made[-1]

        wrapped = result if isinstance(result, bool | int | float) else _mapped(outer, result)
        fresh = [leaf for leaf in made if leaf.on_cpu.untyped_storage()._cdata not in memory_of]
        if name not in _FREE:
            self.kernels[name] += not reads
            self.wide[name] += any(leaf.dtype is torch.float64 for leaf in (*mine, *made))
            self._launch(name, mine, [*fresh, *changed])
        if self.capture is not None and (fresh or func._schema.is_mutable):
            self.capture.append(func, inner_args, inner_kwargs, fresh)
        if reads:
            self.wait(stream.clock, name)
        return wrapped

    def _launch(self, name: str, read: Iterable[GpuTensor], changed: Iterable[GpuTensor]) -> None:
        """Note, and check, which memory the next kernel of the present stream reads and writes."""
        written = {leaf.memory for leaf in changed}
        only_read = {leaf.memory for leaf in read} - written
        if self.capture is not None:  # nothing runs before the replay
            self.capture.read |= only_read
            self.capture.written |= written
            return
        clock = self.current_stream().issue()
        for memory in only_read:
            memory.read(clock, name)
        for memory in written:
            memory.write(clock, name)

    def _copy(self, func: Any, name: str, device: Any, args: Any, kwargs: Any) -> Any:
        """Inside the device, or between it and the host."""
        if name == "copy_":
            to, of = args[0], args[1]
            asynchronous = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            inner_args, inner_kwargs = [_inner(to), _inner(of)], dict[str, Any]()
            if self.capture is not None:
                self.capture.save([to])
            func(*inner_args)
        else:
            of, asynchronous = args[0], bool(kwargs.get("non_blocking", False))
            target = _device_of(of) if device is None else torch.device(device)
            inner_args, inner_kwargs = [_inner(of)], {**kwargs, "non_blocking": False}
            inner = func(*inner_args, **inner_kwargs)
            to = GpuTensor(inner, self.chosen(name)) if target.type == "meta" else inner
        if isinstance(to, GpuTensor) and isinstance(of, GpuTensor):
            self.kernels[name] += to.numel() > 0
            self._launch(name, [of], [to])
            if self.capture is not None:
                self.capture.append(func, inner_args, inner_kwargs, [] if name == "copy_" else [to])
        elif (isinstance(to, GpuTensor) or isinstance(of, GpuTensor)) and to.numel():
            if asynchronous and to.device.type == "cpu" and name == "_to_copy":
                self.pin(to)  # torch does so itself
            self._transfer(to, of, asynchronous)
        return to

    def _transfer(self, to: Tensor, of: Tensor, asynchronous: bool) -> None:
        """Between device and host. A copy from or to memory that is not pinned waits for the device."""
        direction, host = ("to device", of) if isinstance(to, GpuTensor) else ("to host", to)
        pinned = self.memory_of_host(host)
        asynchronous = asynchronous and pinned is not None
        self.copies[direction, asynchronous] += 1
        stream = self.current_stream()
        clock = stream.issue()
        for tensor, access in ((of, Memory.read), (to, Memory.write)):
            memory = tensor.memory if isinstance(tensor, GpuTensor) else pinned
            if memory is not None:
                access(memory, clock, f"copy {direction}")
        if not asynchronous:
            self.wait(stream.clock, f"copy {direction}")
        elif self.capture is not None:
            raise RuntimeError("a graph that copies from or to the host copies the same memory for ever")


def leaves_of(value: Any) -> Iterator[Any]:
    """All that nested containers hold; torch's own function for it takes most of a test's time."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves_of(each)
    elif isinstance(value, dict):
        yield from leaves_of(list(value.values()))
    else:
        yield value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(change, each) for each in value)
    if isinstance(value, dict):
        return {name: _mapped(change, each) for name, each in value.items()}
    return change(value)


def _inner(leaf: Any) -> Any:
    return leaf.on_cpu if isinstance(leaf, GpuTensor) else leaf


def _changed(func: Any, args: Any, kwargs: Any) -> list[GpuTensor]:
    """The arguments that an operation changes."""
    if not func._schema.is_mutable:
        return []
    found: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += leaves_of(args[place] if place < len(args) else kwargs.get(argument.name))
    return [leaf for leaf in found if isinstance(leaf, GpuTensor)]


class Graph:
    """Stands for torch.cuda.CUDAGraph: operations, and the memory that they read and write.

    A capture computes nothing. Here it computes, and ``finish`` takes back what it has changed.
    """

    def __init__(self) -> None:
        # Function, arguments, and results that have memory of their own.
        self._launches: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.read: set[Memory] = set()
        self.written: set[Memory] = set()
        self._made: set[Memory] = set()
        self._before: list[tuple[Tensor, Tensor]] = []
        self._noise = torch.get_rng_state()

    def save(self, tensors: Iterable[GpuTensor]) -> None:
        """Before a capture changes them."""
        kept = [leaf.on_cpu for leaf in tensors if leaf.memory not in self._made]
        self._before += [(inner, inner.clone()) for inner in kept]

    def append(self, func: Any, args: Any, kwargs: Any, fresh: list[GpuTensor]) -> None:
        self._launches.append((func, args, kwargs, [leaf.on_cpu for leaf in fresh]))
        self._made |= {leaf.memory for leaf in fresh}

    @torch.no_grad()
    def finish(self) -> None:
        """After a capture."""
        for inner, content in reversed(self._before):
            inner.copy_(content)
        self._before = []
        torch.set_rng_state(self._noise)

    @torch.no_grad()
    def replay(self) -> None:
        gpu = _active()
        gpu.kernels["graph"] += 1
        clock = gpu.current_stream().issue()
        for memory in self.read - self.written:
            memory.read(clock, "a graph")
        for memory in self.written:
            memory.write(clock, "a graph")
        for func, args, kwargs, fresh in self._launches:
            again = [leaf for leaf in leaves_of(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for to, of in zip(fresh, again, strict=bool(fresh)):
                to.copy_(of)
