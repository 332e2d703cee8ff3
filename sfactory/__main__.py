"""``python -m sfactory`` lists the commands."""

from __future__ import annotations

import sys

USAGE = """sfactory's commands:
  python -m sfactory.train --env=ENV [flags]           train (--help lists the flags)
  python -m sfactory.enjoy --experiment=NAME [flags]   play what was trained
  python -m sfactory.evaluate --experiment=NAME        episodes in several processes, with intervals
  python -m sfactory.export --experiment=NAME --out=FILE.safetensors   its weights as a file
  python -m sfactory.plot population RUN               a picture of a population
  python -m sfactory.match RUN ...                     its policies against each other
  python -m sfactory.check_env --env=ENV               what is wrong with an environment
  python -m sfactory.envs [FAMILY]                     environments by name, and what each family needs
  python -m sfactory.launcher --run=WHAT [flags]       many runs
"""

if __name__ == "__main__":
    print(USAGE, end="", file=sys.stderr)
    sys.exit(2)
