"""The reference page of profiles: `python -m megarl.submit.reference > docs/profile.md`."""

from megarl.config.reference import tables
from megarl.submit.profile import Profile

_INTRODUCTION = """# Profile keys

Made by `python -m megarl.submit.reference`. [slurm](slurm.md) says what a profile is for. A profile is YAML;
`megarl submit --set key=value` wins over it. Unknown keys, wrong types and values out of range are refused.
"""


def reference() -> str:
    """The page as Markdown."""
    return _INTRODUCTION + tables(Profile)


if __name__ == "__main__":
    print(reference(), end="")
