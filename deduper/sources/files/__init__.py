"""Files of a folder or a glob: listed by the job, judged once each, known by path.

Doors: `batch.FileBatches`, `judged.KnownFiles`, `folding.SourceFolding`, `listing`, `source_file`, `unreadable` (one
bad file must not end a job), `plain_reading` and `file_ways` (what is read without Spark). A file's row has one
permanent place, so each is read whole by one task.
"""
