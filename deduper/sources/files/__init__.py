"""Files of a folder or a glob: listed by the job, judged once each, known by path.

Doors: `batch.FileBatches`, `judged.KnownFiles`, `folding.SourceFolding`, `listing`, `source_file`, and `plain_reading`
(what is read without Spark). `file_ways` gives each file of a window its reader, and `unreadable` keeps one bad file
from ending a job. A file's row has one permanent place, so each is read whole by one task.
"""
