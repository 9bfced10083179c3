"""Drift diagnosis on models and engines: experiments, measurements, the self-test."""
