"""A run's state on disk."""
