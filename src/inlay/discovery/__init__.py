"""Losses and statistics for discovering new classes: pure functions on tensors, one noun per module."""
