"""What is wrong with a dump, in one sentence."""

from megarl.config.errors import UserError


class DumpError(UserError):
    """A dump that cannot be read, or two dumps that cannot be compared."""
