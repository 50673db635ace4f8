"""What a job keeps beside its windows, and no window fails by: the history, the leak meter.

Doors: `accessory.Accessory`, `history_watch.HistoryWatch`, `leak_watch.LeakWatch`. Touches files
of the store, through bucket_store.
"""
