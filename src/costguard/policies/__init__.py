"""Pure decisions: immutable records in, a decision with its reason out; no file, clock, process group or Trainer."""
