"""Commands that have commands of their own, one folder a command and one file each of its own."""
