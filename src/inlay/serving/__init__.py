"""Predictions over HTTP, and what they share with the review page."""
