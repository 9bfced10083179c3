"""SLURM jobs that run a recipe: rendered, submitted, followed, and what runs inside them."""
