"""Faults that are planted in a small model, and whether `diagnose` names each first."""
