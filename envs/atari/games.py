"""Names of Atari games and of their ROMs."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The games of Bellemare et al. 2013 as completed by later work: the 57 that benchmarks report on.
GAMES: tuple[str, ...] = (
    "alien",
    "amidar",
    "assault",
    "asterix",
    "asteroids",
    "atlantis",
    "bank_heist",
    "battle_zone",
    "beam_rider",
    "berzerk",
    "bowling",
    "boxing",
    "breakout",
    "centipede",
    "chopper_command",
    "crazy_climber",
    "defender",
    "demon_attack",
    "double_dunk",
    "enduro",
    "fishing_derby",
    "freeway",
    "frostbite",
    "gopher",
    "gravitar",
    "hero",
    "ice_hockey",
    "jamesbond",
    "kangaroo",
    "krull",
    "kung_fu_master",
    "montezuma_revenge",
    "ms_pacman",
    "name_this_game",
    "phoenix",
    "pitfall",
    "pong",
    "private_eye",
    "qbert",
    "riverraid",
    "road_runner",
    "robotank",
    "seaquest",
    "skiing",
    "solaris",
    "space_invaders",
    "star_gunner",
    "surround",
    "tennis",
    "time_pilot",
    "tutankham",
    "up_n_down",
    "venture",
    "video_pinball",
    "wizard_of_wor",
    "yars_revenge",
    "zaxxon",
)

_PREFIX = "atari_"
_GYMNASIUM_ID = re.compile(r"ALE/(?P<new>[A-Za-z]+)(?:-v5)?|(?P<old>[A-Za-z]+?)(?:Deterministic|NoFrameskip)?-v[04]")
# As Sample Factory writes them: without underscores, and four of them otherwise.
_ROM_OF_PLAIN_NAME = {rom.replace("_", ""): rom for rom in GAMES} | {
    "asteroid": "asteroids",
    "kongfumaster": "kung_fu_master",
    "montezuma": "montezuma_revenge",
    "privateye": "private_eye",
}
_ROM_OF_TITLE = {"".join(word.capitalize() for word in rom.split("_")): rom for rom in GAMES}


def lacks_sticky_actions(env_id: str, flags: Mapping[str, object]) -> bool:
    """Whether Gymnasium's env of ``env_id`` repeats actions at random (0.25), and ``flags``, which the user has set, do
    not say whether ours does."""
    match, kwargs = _GYMNASIUM_ID.fullmatch(env_id), flags.get("env_kwargs")
    is_said = "sticky_actions" in flags or (isinstance(kwargs, Mapping) and "repeat_action_probability" in kwargs)
    return match is not None and (match["new"] is not None or env_id.endswith("-v0")) and not is_said


def rom_of(env_name: str) -> str | None:
    """The ROM of ``atari_<rom>`` (or without underscores) or of a Gymnasium id, of one of the 57 games; else None."""
    if env_name.startswith(_PREFIX):
        rom = env_name.removeprefix(_PREFIX)
        return rom if rom in GAMES else _ROM_OF_PLAIN_NAME.get(rom)
    match = _GYMNASIUM_ID.fullmatch(env_name)
    return None if match is None else _ROM_OF_TITLE.get(match["new"] or match["old"])
