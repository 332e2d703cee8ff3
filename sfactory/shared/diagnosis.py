"""Describes what each process is doing and what it is waiting for.

Reads only shared counters, takes no locks and sends no messages, so it works even if all processes are stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sfactory.clock import now
from sfactory.layout import ACTORS
from sfactory.shared.slots import SlotTable
from sfactory.shared.status import State, StatusBoard


def describe_processes(status: StatusBoard, table: SlotTable, waiting: Mapping[str, int] | None = None) -> str:
    """One line per process: its state, its activity and for how long; for an actor also its slots by state.

    ``waiting``: unread messages per process; not shown if None. The last line names the process with the newest
    heartbeat.
    """
    lines = [_line(status, name, table, (waiting or {}).get(name)) for name in status.names]
    heard = {name: status.row(name).get("heartbeat") for name in status.names}
    last = max(heard, key=lambda name: heard[name])
    return "\n".join([*lines, f"  heard of last: {last}, {_ago(heard[last])}"])


def _line(status: StatusBoard, name: str, table: SlotTable, waiting: int | None) -> str:
    row = status.row(name)
    state, since = State(int(row.get("state"))), row.get("busy_since")
    doing = f"busy for {max(0.0, now() - since):.1f} s" if since else "waits"
    text = f"  {name}: {state.name.lower()}, {doing}, heard of {_ago(row.get('heartbeat'))}"
    if row.get("pid"):
        text += f", pid {int(row.get('pid'))}"
    if waiting is not None:
        text += f", {waiting} messages wait for it"
    if name.startswith(ACTORS):
        states = Counter(table.state(slot).name.lower() for slot in table.slots_of(int(name.removeprefix(ACTORS))))
        slots = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        text += f", {int(row.get('env_steps'))} env steps; slots: {slots}"
    return text


def _ago(heartbeat: float) -> str:
    return f"{max(0.0, now() - heartbeat):.1f} s ago" if heartbeat else "never"
