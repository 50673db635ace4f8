"""Optional files of a job, the history and the leak sample: a failure here never fails a window.

Doors: `accessory.Accessory`, `history_watch.HistoryWatch`, `leak_watch.LeakWatch`. Touches files of the store.
"""
