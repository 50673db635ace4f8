"""Files of a folder or a glob: listed by the job, judged once each, known by path.

Doors: `batch.FileBatches`, `judged.KnownFiles`, `folding.SourceFolding`, `listing`, `source_file`. A
row has one permanent place in its file, so one task reads a file whole. Never judges a file twice.
"""
