"""Learning new classes that come with labels: exemplars, classifiers and losses, one noun per module."""
