"""What the turns of a benchmark have shown. PURE.

Doors: `figures` (numbers of a lane, their spreads and ratios), `measures` (values from the lanes), `targets`, `report`
(rows of the printed tables).
"""
