"""Files by which servers on other nodes tell of themselves, each named by its server. Imports nothing heavy."""

URL = ".url"
"""Ending of the file with its address, once it listens."""
ENDED = ".ended"
"""Ending of the file with its last words, where it ended by itself."""
