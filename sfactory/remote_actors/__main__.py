"""Runs the command."""

import sys

from sfactory.remote_actors.command import main

if __name__ == "__main__":
    sys.exit(main())
