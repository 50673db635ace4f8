"""The command line: commands, exit codes, answers as text and JSON. Door: `main`.

Modules of other rooms load inside the commands that need them, so that `--help` stays quick.
"""
