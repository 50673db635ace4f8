"""Reports of `deduper.admin` as text for people. One `render` a report."""
