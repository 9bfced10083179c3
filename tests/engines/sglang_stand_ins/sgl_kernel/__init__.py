"""Stand-in for SGLang's kernel package: every name can be imported, and none can be called."""

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., Any]:
    # SGLang asks for some by hasattr
    if name.startswith("__") or name == "scalar_type":
        raise AttributeError(name)

    def absent(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a stand-in, and this model calls it")

    return absent
