"""Where a rank runs, as ``torchrun`` says it in the environment, and its share of the machine. It imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sfactory import atomic
from sfactory.errors import ConfigError
from sfactory.system.cores import RANKS, core_ids

RUN_ID = "learner_devices"  # by which torch tells ranks that --learner_devices has started
LAST_LINE, EXIT_CODE = "last_line", "exit_code"  # what the first of them leaves
_STARTER = os.getppid()  # unless it has ended before this import
START_S = 600.0  # that a rank waits for the others, which check their envs and load their code, each in its time


@dataclass(frozen=True)
class Place:
    """A rank of ``world``, and its number among the ``local_world`` ranks of its machine.

    folder: where the first rank leaves how it has ended, if --learner_devices has started it.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    folder: str = ""

    @staticmethod
    def of_environment(environ: Mapping[str, str] = os.environ) -> Place:
        """The place that torch's launcher has given this process; without it, and for one rank, that of a rank alone.

        Raises ConfigError if the variables of the environment are no place.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if not all(name in environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
            return ONE_RANK
        texts = [environ[name] for name in names]
        rank, world, local_rank, local_world = (int(text) if text.isdecimal() else -1 for text in texts)
        if not (0 <= rank < world and 0 <= local_rank < local_world <= world):
            said = " ".join(f"{name}={environ[name]}" for name in names)
            raise ConfigError([f"{said}: no place of a rank; have torchrun set these, or unset them"])
        if world == 1:
            return ONE_RANK
        is_ours = environ.get("TORCHELASTIC_RUN_ID") == RUN_ID
        folder = os.path.dirname(environ.get("TORCHELASTIC_ERROR_FILE", "")) if is_ours else ""
        return Place(rank, world, local_rank, local_world, folder)

    def leave(self, name: str, text: str) -> bool:
        """Leave ``text`` to the process that has started this rank, if it lives and reads that; whether it does.

        Otherwise the folder that it would have removed is removed as far as it is empty.
        """
        if self.folder and os.getppid() != _STARTER:
            folder = Path(self.folder)
            for each in (folder, *folder.parents[:3]):
                with contextlib.suppress(OSError):  # not empty while another rank lives
                    each.rmdir()
            return False
        if not self.folder or self.rank:
            return False
        try:
            atomic.write_text(Path(self.folder) / name, text)
        except OSError:
            return False
        return True

    def take_share(self) -> None:
        """Leave this process, and all that it starts, its part of the machine's cores and CPU quota, and a GPU.

        Call it before a thread starts. Raises ConfigError if there are fewer visible GPUs than ranks.
        """
        if self.local_world == 1:
            return
        os.environ[RANKS] = str(self.local_world)
        cores = sorted(core_ids())
        each = len(cores) // self.local_world
        if each:
            first = each * self.local_rank
            os.sched_setaffinity(0, cores[first : first + each])
        listed = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        visible = [gpu.strip() for gpu in listed if gpu.strip()]
        if visible and self.local_rank >= len(visible):
            text = f"CUDA_VISIBLE_DEVICES has {len(visible)} GPUs, and this machine {self.local_world} ranks"
            raise ConfigError([f"{text}: start as many as there are GPUs (torchrun --nproc-per-node)"])
        if visible or "CUDA_VISIBLE_DEVICES" not in os.environ:  # "" hides all GPUs
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[self.local_rank] if visible else str(self.local_rank)


ONE_RANK = Place()
