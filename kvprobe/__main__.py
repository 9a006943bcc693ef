"""`python -m kvprobe`."""

from kvprobe.cli import entry_point

entry_point()
