"""How each report of `deduper.admin` looks to a person. One `render` a report."""
