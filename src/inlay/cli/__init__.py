"""The command line."""

from inlay.cli.app import app, main

__all__ = ["app", "main"]
