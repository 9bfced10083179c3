"""Prompts, answers and demonstrations; tokenizers."""
