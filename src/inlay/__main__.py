"""Makes `python -m inlay` the same as `inlay`."""

from inlay.cli import main

main()
