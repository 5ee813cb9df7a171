"""Log compaction (Kafka's LogCleaner): of every key the last record stays, of everything else nothing need stay.

On the event loop `cleaner.LogCleaner` chooses the dirtiest log (`choice`), hands a `job` to a worker process and puts
the segments that come back in the place of the old ones (`swap`). In the worker, `cleaning` makes one pass: it notes
the last offset of every key of the log's dirty part in a table of bounded size (`offset_map`), then copies the log,
group of segments by group, without what is superseded (`survivors`, `record_scan`, `transactions`).
"""
