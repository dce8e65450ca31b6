"""Plugins bring commands too: their tests run them as those of the command line do."""

from tests.cli.conftest import command as command
