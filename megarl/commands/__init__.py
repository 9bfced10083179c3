"""The commands, one file a command; a command that has commands of its own is a folder of them."""

from megarl.commands import (
    cancel,
    compare,
    config,
    convert,
    doctor,
    drift,
    jobs,
    plan,
    serve,
    submit,
    sync_check,
    train,
)
from megarl.commands.command import Command

COMMANDS: dict[str, Command] = {
    "train": train,
    "config": config,
    "plan": plan,
    "sync-check": sync_check,
    "convert": convert,
    "compare": compare,
    "drift": drift,
    "serve": serve,
    "doctor": doctor,
    "submit": submit,
    "jobs": jobs,
    "cancel": cancel,
}
"""By their names on the command line, in the order that the help lists them."""
