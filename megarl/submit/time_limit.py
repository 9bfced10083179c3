"""Time limits as SLURM writes them."""

import re

# more digits than SLURM's 32 bits would take
_FORMS = (
    r"(?P<minutes>\d{1,9})(:(?P<seconds>\d{1,9}))?",
    r"(?P<hours>\d{1,9}):(?P<minutes>\d{1,9}):(?P<seconds>\d{1,9})",
    r"(?P<days>\d{1,9})-(?P<hours>\d{1,9})(:(?P<minutes>\d{1,9})(:(?P<seconds>\d{1,9}))?)?",
)
_UNITS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_NONE = ("UNLIMITED", "INFINITE")


def seconds_of(text: str) -> float | None:
    """A time limit in seconds, infinity where there is none; None where the text is no time limit.

    The forms are those of sbatch's manual page under --time: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours, days-hours:minutes and days-hours:minutes:seconds; 0, UNLIMITED and INFINITE are no limit.
    """
    if text.upper() in _NONE:
        return float("inf")
    found = next(filter(None, (re.fullmatch(form, text, re.ASCII) for form in _FORMS)), None)
    if found is None:
        return None
    seconds = sum(_UNITS[unit] * int(number) for unit, number in found.groupdict().items() if number is not None)
    return float(seconds) or float("inf")
