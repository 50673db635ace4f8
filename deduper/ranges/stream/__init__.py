"""Range aggregates on a stream: two ports of jobs in, every event once with the aggregates of the ranges known by then.

Doors: `settings.StreamJob`, `job.run`, `status`. Touches the folders and topics that its
settings name, in the windows of `bucket_store.log`. Ranges are kept in *levels*, each a durable piece and an index in
memory: the state is a function of committed windows. Never needs Spark.
"""
