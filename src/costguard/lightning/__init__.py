"""The only rooms that know a Trainer: thin callbacks, and what they share."""
