"""What a training step computes, seen once: torch's functions as they are called, and the products behind them."""
