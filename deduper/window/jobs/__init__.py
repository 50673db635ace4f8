"""The Spark jobs of a window: read, judge, write, on one machine or on a cluster, and the merges of small pieces.

Doors: `local.SparkJobs`, `cluster.ClusterJobs`, `merges.TaskMerges`. Never sees a commit record.
"""
