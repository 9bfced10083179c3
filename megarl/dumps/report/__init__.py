"""The report on one dump: statistics, a verdict in plain words, and a page of HTML that needs nothing else."""
