"""Starts a rank on each of --learner_devices by the launcher behind torchrun, and ends as the first one.

NOTE [Local ranks]: the process of the command is torch's agent, and trains nothing. It sends the first signal to all
ranks, which save and end; a second one ends them at once. If it is killed, they get SIGTERM (NOTE [Death of the
launcher]), and remove its folder. The first rank leaves its last line and its exit code there, because other ranks may
print, and exit, after it. Ranks meet at a store on the loopback: torch's own listen on all network cards, and c10d
unpickles what it finds there.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sfactory.clock import RANKS_MOST_S
from sfactory.config.flags import assigned
from sfactory.errors import ExitCode, RankLost
from sfactory.launch.tied_process import tied_command
from sfactory.process.signals import HANDLED, set_process_name
from sfactory.ranks.place import EXIT_CODE, LAST_LINE, RUN_ID, START_S
from sfactory.system.gpu import require_gpu
from sfactory.system.operating_system import signal_name

_ON_LOOPBACK = "sfactory-loopback"
_LOOPBACK = "127.0.0.1"


class _MeetingOnLoopback(StaticTCPRendezvous):
    """One agent, which keeps the store of its ranks where other machines cannot reach it."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        listening = socket.create_server((_LOOPBACK, 0))
        port = listening.getsockname()[1]
        super().__init__(_LOOPBACK, port, 0, 1, parameters.run_id, int(START_S))
        self._store = TCPStore(_LOOPBACK, port, 1, True, self.timeout, master_listen_fd=listening.detach())

    def get_backend(self) -> str:
        """The name of this class in torch's registry."""
        return _ON_LOOPBACK


rendezvous_handler_registry.register(_ON_LOOPBACK, _MeetingOnLoopback)


def train_in_ranks(devices: Sequence[str], arguments: Sequence[str]) -> tuple[int, str]:
    """Train on ``devices``, a rank on each; returns the exit code and the last line of the first rank.

    arguments: of sfactory.train. Raises ConfigError if there is no such device, and RankLost, with the exit code of
    another rank if that is why all have ended, if the first rank has left neither, or was ended by torch.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible_to_ranks(devices))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a store that is lost would log a trace for each call
    set_process_name("sf-ranks")
    handlers = {signum: signal.getsignal(signum) for signum in HANDLED}
    listening = [signum.name for signum, handler in handlers.items() if handler != signal.SIG_IGN]
    with tempfile.TemporaryDirectory(prefix="sfactory-ranks-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=len(devices),
            logs_specs=DefaultLogsSpecs(folder),
            run_id=RUN_ID,
            rdzv_backend=_ON_LOOPBACK,
            max_restarts=0,
            signals_to_handle=",".join(listening),
            shutdown_timeout=int(RANKS_MOST_S),
        )
        program, *words = tied_command([sys.executable, "-m", "sfactory.train", *arguments])
        how, code = "a signal", 0
        logging.disable(logging.ERROR)  # ranks say why they end, and the first one after all others
        try:
            elastic_launch(config, program)(*words)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            ended = f"by {signal_name(-code)}" if code < 0 else f"with exit code {code}"
            how = f"rank {rank} (main process {failure.pid}) has ended {ended}"
        except SignalException as error:
            how, code = f"{error.sigval.name} came", 128 + error.sigval
        finally:
            logging.disable(logging.NOTSET)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)
        left = {path.name: path.read_text() for path in Path(folder).glob("*/attempt_0/0/*")}
    if not left.keys() >= {EXIT_CODE, LAST_LINE}:
        raise _lost(f"{how}, and the first rank has left no result", code)
    exit_code = int(left[EXIT_CODE])
    if exit_code == ExitCode.SIGTERM and code not in (0, -signal.SIGTERM, ExitCode.SIGTERM):
        raise _lost(f"{how}, and so all others, too", code)  # torch has ended the first rank, because of another one
    last_line = left[LAST_LINE]
    # The first rank cannot know why another one did not come.
    return exit_code, last_line.replace(" cause: ", f" cause: {how}; ", 1) if code < 0 else last_line


def _lost(cause: str, code: int) -> RankLost:
    """The error that ends as a rank with the exit ``code`` has, where that is one of sfactory's."""
    lost = RankLost(cause)
    lost.exit_code = ExitCode(code) if code and code in set(ExitCode) else lost.exit_code
    return lost


def visible_to_ranks(devices: Sequence[str]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be, so that rank k of a machine finds its GPU in place k."""
    if devices[0] == "cpu":
        return []
    cpus = ",".join("cpu" for _ in devices)
    given, instead = assigned("learner_devices", ",".join(devices)), f"use --learner_devices={cpus}, or leave it out"
    require_gpu(max(map(int, devices)), given, instead)
    visible = [gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [visible[int(device)] if visible[0] else device for device in devices]
