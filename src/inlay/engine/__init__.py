"""The one training loop and what it stands on: randomness, schedule, checkpoints, progress."""
