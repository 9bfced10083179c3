"""The user's own code in a recipe: a dotted path to something callable."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from megarl.config.refusal import refusal


def import_dotted(key: str, path: str, expected: str) -> Callable[..., Any]:
    """What `path` names, such as my_package.my_module.my_function.

    Args:
        key: the recipe key that holds the path, for the message.
        path: module and attribute, joined by a dot.
        expected: what the attribute should be, for the message.

    Raises:
        RecipeError: the module cannot be imported, or the attribute is missing or cannot be called.
    """
    module_name, _, attribute = path.rpartition(".")
    try:
        module = import_module(module_name)
    # the module is the user's, and may raise anything, or end the process
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        reason = f"names the module {module_name}, which cannot be imported ({type(error).__name__}: {said})"
        fix = "put it on PYTHONPATH" if isinstance(error, ImportError) else "mend the module"
        raise refusal(key, path, reason, fix) from error
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        what = "is not callable" if hasattr(module, attribute) else "is not there"
        reason = f"names {attribute} in the module {module_name}, which {what}"
        raise refusal(key, path, reason, f"name {expected}")
    return found


def mismatch(function: Callable[..., Any], *positional: Any, **named: Any) -> str | None:
    """Why `function` cannot be called with these arguments; None where it can, or where its signature is not known."""
    try:
        signature(function).bind(*positional, **named)
    except TypeError as error:
        return str(error)
    # functions written in C need not tell their signature
    except ValueError:
        return None
    return None
