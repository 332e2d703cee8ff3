"""The first module that the fork server imports, while it is small: the watcher splits off here."""

from sfactory.process.watcher import split

split()
