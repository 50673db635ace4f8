"""The command line: commands, exit codes, answers as text and JSON. Door: `main`.

    commands  what each command takes, and which room does its work
    views     the answers as text
Modules of other rooms load inside the commands that need them, so that `--help` stays quick.
"""
