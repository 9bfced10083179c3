"""Values that a careless script would run."""

MARK = "ran-as-shell"
"""File that every value tries to make."""

VALUES = (
    "two words",
    "it's",
    '"',
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"'; touch {MARK}; '",
    f'"; touch {MARK}; "',
    f"first\n#SBATCH --wrap=x\ntouch {MARK}\n",
    f"${{x:=$(touch {MARK})}}",
    f"a\\'; touch {MARK}; #",
    f"; touch {MARK} &",
    "* ~ ! {a,b}",
    "tab\tand\rbell\a",
    "\u2028é\x85",
    "-rf",
    "#",
    "{{ job.name }}{% for x in job %}",
    "",
)
