"""Checkpoints in two tiers: kept hot, moved to the cold store, brought back, let go, and never lost on the way."""
