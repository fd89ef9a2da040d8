"""Teach an image classifier new classes from unlabelled images."""
