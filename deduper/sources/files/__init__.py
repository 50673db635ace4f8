"""Files of a folder or a glob: listed by the job, judged once each, known by path.

Doors: `batch.FileBatches`, `judged.KnownFiles`, `folding.SourceFolding`, `listing`, `source_file`, and `reading` (how
files are read). A file's row has one permanent place, so each is read whole by one task.
"""
