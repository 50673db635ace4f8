"""The commands, by what they are about. A module registers its own; `cli.main` imports them in the help's order."""
