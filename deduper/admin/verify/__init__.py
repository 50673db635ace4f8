"""Everything a store and its outputs say, held against each other. Door: `run`. Changes nothing."""
