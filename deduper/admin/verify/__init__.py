"""Log, pieces, keys and outputs of a store, compared with each other. Door: `run`. Changes nothing."""
