"""Modules with the published interfaces of packages that cannot be installed here; a run imports them from here."""
