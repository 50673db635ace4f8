"""Changes of rows that a table has: upserts and deletes, by rewriting the files that hold a key, and no others.

Doors: `upsert.upsert`, `upsert.plan_upsert`, `delete.delete`, `delete.plan_delete`; `receipt`. A plan takes no lock and
writes nothing; a change runs by the steps of `write`.
"""
