"""Where every second, byte and token went."""
