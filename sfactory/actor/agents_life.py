"""Room: who of one env's agents takes part. In: what each step changed. Out: what that makes of their rows.

NOTE [Agent life]: an agent that takes part in step t has the valid row t. If it does not go on to step t+1 while
others of its env do, then
- terminated: terminated[t], and it stands idle from row t+1 on until the env's episode is over;
- truncated: truncated[t]; row t+1 shows its final observation, is acted on for its value alone, and is invalid, as in
  NOTE [Truncation row]. It stands idle from row t+2 on. If row t+1 would be the first of the next slot, the final
  observation is obs[T] alone, and it stands idle at once;
- fallen asleep: as truncated, for what is learned. But its episode goes on: its return does, no row is marked as the
  first of an episode when it wakes up, and it remembers all that it has seen, its last look before the sleep included.
  So it shows that in the first row of the next slot, too, if that is where row t+1 falls.
Who has no observation to show after such a step has the invalid row t: what the value after it depends on was not
given. The row before it looks ahead to row t.

An idle row shows zeros, is invalid, and nobody acts for it. What is paid to an agent in it counts in returns alone.

The env's episode is over once those of all its agents are. If the last step truncated one, row t+1 is a truncation row
for the whole env, which is reset in it. Otherwise the env is reset at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sfactory.env.agents import Change


class Stops(NamedTuple):
    """What a step made of the agents of an env, by place.

    terminated, truncated: whose episode ended with it, and who had taken part
    paused: who fell asleep
    lost: of those truncated or paused, who has nothing to show
    ended: whose episode ended while they slept
    over: whether the env's episode is over
    rests: whether the env is reset in the next step instead of now
    """

    terminated: list[int]
    truncated: list[int]
    paused: list[int]
    lost: list[int]
    ended: list[int]
    over: bool
    rests: bool


class AgentsLife:
    """Who of A agents takes part in the next step; see NOTE [Agent life].

    acting: [A] who does
    showing: who does not, and shows what it has seen last
    """

    def __init__(self, size: int) -> None:
        self.acting = [True] * size
        self.showing: list[int] = []
        self._over = [False] * size

    def begin(self, observations: Sequence[Any]) -> None:
        """A new episode; None stands for an agent that begins it asleep."""
        self.acting = [obs is not None for obs in observations]
        self.showing = []
        self._over = [False] * len(observations)

    def end_showing(self, of_the_asleep: bool) -> bool:
        """No final observation is shown in the next row, but of those who only sleep if not ``of_the_asleep``.

        Returns whether anything has changed.
        """
        before = self.showing
        self.showing = [agent for agent in before if not (of_the_asleep or self._over[agent])]
        return self.showing != before

    @property
    def aside(self) -> list[int]:
        """Who takes no part in the next step."""
        return [agent for agent, acts in enumerate(self.acting) if not acts]

    @property
    def absent(self) -> list[int]:
        """Who takes no part in the next step, and shows nothing."""
        return [agent for agent in self.aside if agent not in self.showing]

    def change(self, change: Change, observations: Sequence[Any]) -> Stops:
        """Take in what a step changed; ``observations``: what it has shown of each, or None."""
        terminated: list[int] = []
        truncated: list[int] = []
        paused: list[int] = []
        ended: list[int] = []
        for agent, was_over in enumerate(self._over):
            if was_over:
                continue
            over = change.terminated[agent] or change.truncated[agent]
            goes_on = change.active[agent] and not over
            if self.acting[agent] and not goes_on:
                (terminated if change.terminated[agent] else truncated if over else paused).append(agent)
            elif over:
                ended.append(agent)
            self.acting[agent], self._over[agent] = goes_on, over
        stopped = truncated + paused
        lost = [agent for agent in stopped if observations[agent] is None]
        self.showing = [agent for agent in stopped if observations[agent] is not None]
        over = all(self._over)
        return Stops(terminated, truncated, paused, lost, ended, over, rests=over and bool(self.showing))
