"""The user's own code in a recipe: a dotted path to something callable."""

from collections.abc import Callable
from importlib import import_module
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
    except ImportError as error:
        reason = f"names the module {module_name}, which cannot be imported ({error})"
        raise refusal(key, path, reason, "put it on PYTHONPATH") from error
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(found):
        what = "is not callable" if hasattr(module, attribute) else "is not there"
        reason = f"names {attribute} in the module {module_name}, which {what}"
        raise refusal(key, path, reason, f"name {expected}")
    return found
