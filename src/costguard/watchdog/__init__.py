"""A small process beside a training, which gives the machine back when the training has ended; it knows no torch."""
