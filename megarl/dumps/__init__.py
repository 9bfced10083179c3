"""Rollout dumps: every response of a step as parquet, with all that its loss was formed from."""
