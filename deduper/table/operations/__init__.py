"""What is done with a table: loads, upserts, deletes, rollbacks; questions; a check, and an index built again.

Doors: `changes` (`load`, `upsert`, `delete` and their plans), `questions` (`filter_exists`, `tag`, `read`), `rollback`,
`upkeep` (status, rebuild), `verify`; `write.saying_when_stopped` for commands. A write goes through the numbered steps
of `write`: lock, verdicts (`judge`), staged files, plan, commit, index. Questions and plans take no lock and write
nothing.
"""
