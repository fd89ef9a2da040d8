"""Errors meant for the person at the keyboard."""

__all__ = ["FailedElsewhereError", "InlayError", "Interrupted", "TrainingDivergedError"]


class InlayError(Exception):
    """Something the user can put right; the message is one sentence that says what to write instead."""


class TrainingDivergedError(InlayError):
    """A loss or a weight stopped being finite; the last good state is kept."""


class Interrupted(InlayError):
    """Work was stopped by Ctrl-C at a moment when its state was whole."""


class FailedElsewhereError(InlayError):
    """The main one of several processes failed, and says why."""
