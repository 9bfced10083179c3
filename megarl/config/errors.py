"""Errors that are the user's to mend: one sentence, exit code 2, no traceback."""

USER_ERROR = 2
"""The command's exit code for them."""


class UserError(Exception):
    """A mistake in a recipe, in data or on the command line.

    The message is one sentence that holds the key, its value, the reason and the fix. The command line
    prints it alone and exits with code 2; everything else that is raised is a bug and keeps its traceback.
    """


class RecipeError(UserError):
    """A recipe that cannot be right, found before anything is started."""


class DataError(UserError):
    """A data file that cannot be read as prompts and answers."""


class TokenError(UserError):
    """A running server asks for another token than the environment has."""


class ServerSettingsError(UserError):
    """A running server works by other settings than the recipe needs."""


class DivergedError(UserError):
    """Training whose numbers are not finite any more, so that going on would teach nothing."""


class RunFolderError(UserError):
    """An output folder that cannot be used: it holds another recipe's run, or nothing to resume."""
