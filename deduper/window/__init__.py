"""One window in seven numbered steps, and the recovery of a half-done one at a start.

Doors: `runner.WindowRunner`, `opened`, `recovery`, `policy` (rules, from settings and state), `progress`, `publishing`,
`completeness`, `owner_alive`, `present_clock`, `last_known`, `leftovers`. Touches store and ports. Never shows a row
before its commit record.
"""
