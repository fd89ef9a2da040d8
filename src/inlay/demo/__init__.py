"""The demonstration: handwritten digits, two discovery stages, honest baselines."""

from inlay.demo.folder import free_folder
from inlay.demo.study import DemoOutcome, run_demo

__all__ = ["DemoOutcome", "free_folder", "run_demo"]
