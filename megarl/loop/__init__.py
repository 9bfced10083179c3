"""The training loop: what happens in a step, what is logged, when to save."""
